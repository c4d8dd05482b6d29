"""One number with an error bar: the mean of a sample, its interval and bounds, and the trace."""

from __future__ import annotations

import pytest
import torch

import infhess
from infhess.spectra.deflated import deflated_products
from infhess.spectra.estimate import sample_estimate
from infhess.spectra.student import skewed_mean
from util import F64, randn, spd

X = torch.tensor([1.0, 2.0, 3.0, 10.0], dtype=F64)


def test_a_mean_comes_with_its_standard_error_and_interval():
    found = sample_estimate(X, 7, 11)
    assert (found.value, found.products, found.data_points) == (4.0, 7, 11)
    assert found.std == pytest.approx(float(X.std()) / 2)
    assert found.interval(0.9) == pytest.approx(tuple(float(b) for b in skewed_mean(X[:, None], 0.9)))


@pytest.mark.parametrize(("level", "two_sided", "end"), [(0.95, 0.9, 1), (0.05, 0.9, 0), (0.6, 0.2, 1), (0.4, 0.2, 0)])
def test_a_bound_is_an_end_of_the_interval_that_leaves_as_much_on_both_sides(level, two_sided, end):
    found = sample_estimate(X, 1, 1)
    assert found.upper(level) == pytest.approx(found.interval(two_sided)[end])
    assert found.upper(0.5) == 4.0


def test_the_trace_is_the_mean_of_forms_of_random_signs():
    A = spd(5)
    found = infhess.trace(A, probes=4, generator=torch.Generator().manual_seed(3))
    g = torch.Generator().manual_seed(3)
    signs = [2 * torch.randint(2, (5,), generator=g, dtype=F64) - 1 for _ in range(4)]
    values = torch.stack([z @ A @ z for z in signs])
    assert found.value == pytest.approx(float(values.mean()))
    assert found.std == pytest.approx(float(values.std()) / 2)
    assert (found.products, infhess.trace(torch.diag(randn(5))).products) == (4, 36)
    with pytest.raises(ValueError, match="4 or more"):
        infhess.trace(A, probes=3)


def test_by_default_intervals_are_of_95_percent_and_bounds_of_99():
    found = sample_estimate(X, 1, 1)
    assert found.interval() == found.interval(0.95)
    assert found.upper() == found.upper(0.99)
    top = infhess.spectrum(spd(8), 2)
    assert all(torch.equal(a, b) for a, b in zip(top.interval(), top.interval(0.95)))
    assert torch.equal(top.upper(), top.upper(0.99))


def test_what_is_shown_is_numbers():
    low, high = sample_estimate(X, 7, 11).interval(0.95)
    assert repr(sample_estimate(X, 7, 11)) == f"Estimate(4, 95 % {low:.3g} to {high:.3g}; 7 products, 11 data points)"


def dense_net(batch=16):
    """A source of a small net, its data in batches, and the exact Hessian."""
    torch.manual_seed(0)
    model, loss = (
        torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 4)).double(),
        torch.nn.MSELoss(),
    )
    x, y = randn(320, 8) * torch.logspace(1, -1, 8), randn(320, 4, seed=1)
    f = lambda b: loss(model(b[0]), b[1])  # noqa: E731
    source = infhess.Hessian(f, model.named_parameters(), list(zip(x.split(batch), y.split(batch))))
    whole = source.at((x, y), 0)
    return source, whole.block(torch.eye(source.size, dtype=torch.float64))


def test_a_sketch_takes_its_share_out_of_the_noise_and_leaves_the_mean():
    source, H = dense_net(320)
    plain, sketched = (infhess.trace(source, probes=48, sketch=k) for k in (0, 10))
    assert sketched.std < 0.8 * plain.std
    for estimate in (plain, sketched):
        assert abs(estimate.value - float(H.trace())) < 4 * estimate.std
    assert sketched.data_points == 320 * 9
    assert sketched.products == 10 + 8 * 16


def test_the_mean_of_deflated_products_is_the_diagonal():
    source, H = dense_net(320)
    g = torch.Generator().manual_seed(0)
    forms = torch.stack(list(deflated_products(source, 6 * 400, 10, g)))
    off = (forms.mean(0) - H.diagonal()) / (forms.std(0) / 20 + 1e-12)
    assert float(off.abs().max()) < 5


@pytest.mark.parametrize(("sketch", "error"), [(-1, ValueError), (2.5, TypeError)])
def test_a_sketch_is_a_number_of_columns(sketch, error):
    with pytest.raises(error, match="sketch"):
        infhess.trace(torch.eye(4), sketch=sketch)
