"""Spectra of small and awkward data: passes, remainders, replacement. Zero-width intervals only where exact."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import infhess
from infhess import GaussNewton, Hessian, Products, largest, spectrum, trace
from small_data import gaussian_source, loader, problem
from util import F64, close, randn


@pytest.mark.parametrize("n", [3, 20, 100, 129])
def test_all_the_data_in_one_batch_is_exact_whatever_its_size(n):
    loss, w, data, truth = problem(n)
    found = spectrum(Hessian(loss, [w], [data]), 3)
    assert float(found.std.max()) == 0.0
    k = min(3, n)
    close(found.values[:k], truth[:k], 5e-3)
    low, high = found.interval()
    assert bool(((low <= truth) & (truth <= high)).all())
    measured = found.along([data])
    exact = (found.vectors * (2 * data[0].mT @ (data[0] @ found.vectors) / n)).sum(0)
    close(measured.values, exact, 1e-9)


def test_a_random_loss_over_all_data_still_has_error_bars():
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).double()
    _, _, data, _ = problem(128)
    found = spectrum(Hessian(lambda b: nn.functional.mse_loss(net(b[0])[:, 0], b[1]), net.parameters(), [data]), 2)
    assert float(found.std.min()) > 0


def test_rtol_ends_without_splitting_and_for_callables_that_read_points():
    loss, w, data, _ = problem(4000)
    assert spectrum(Hessian(loss, [w], loader(data, 16), split=False), 2, 0.1).stopped == "tolerance"
    g = torch.Generator().manual_seed(0)

    def product(s):
        X = torch.randn(16, 20, generator=g, dtype=F64)
        return X.mT @ (X @ s) / 16

    for source in (Products(product, None, 20, points=16), Products(product, None, 20)):
        rounds = list(infhess.spectrum_rounds(source, 1, 0.15))
        assert [found.stopped for found in rounds] == ["goes on"] * (len(rounds) - 1) + ["tolerance"]
        low, high = rounds[-1].interval()
        assert float((high - low) / 2) <= 0.15 * float(rounds[-1].values)
        assert rounds[-1].products > rounds[0].products


def test_a_budget_ends_what_a_tolerance_would_not():
    source, _ = gaussian_source()
    found = spectrum(source, 1, 0.001, budget=400)
    assert found.stopped == "budget"
    assert found.products <= 400
    low, high = found.interval()
    assert float((high - low) / 2) > 0.001 * float(found.values)


def test_the_loss_never_sees_more_points_than_a_batch_of_the_users():
    loss, w, data, _ = problem(5000)
    seen = []

    def watched(b):
        seen.append(len(b[0]))
        return loss(b)

    spectrum(Hessian(watched, [w], loader(data, 16)), 2, 0.05)
    assert max(seen) == 16


def test_a_zero_eigenvalue_does_not_read_for_ever():
    X = randn(400, 1) * torch.ones(1, 5, dtype=F64)
    w = torch.zeros(5, dtype=F64, requires_grad=True)
    batches = itertools.cycle([X[i : i + 16] for i in range(0, 400, 16)])
    found = spectrum(Hessian(lambda b: (b @ w).square().mean(), [w], batches), 2, 0.5, budget=20000)
    assert found.stopped == "tolerance"
    assert found.data_points < 20000
    low, high = found.interval()
    assert float(low[1]) <= 0 <= float(high[1])
    assert float(high[1] - low[1]) < 1e-9 * float(found.values[0])


def test_there_are_k_values_even_of_the_identity():
    close(spectrum(torch.eye(50), 3).values, torch.ones(3), 1e-5)
    assert spectrum(torch.diag(torch.tensor([2.0, 1.0] + [0.0] * 10)), 5).values.shape == (5,)
    assert spectrum(torch.zeros(9, 9), 3).values.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_exact_values_are_resolved_and_covered_to_rounding(dtype):
    A = randn(12, 12)
    A = (A @ A.mT).to(dtype)
    found = spectrum(A, 12)
    truth = torch.linalg.eigvalsh(A.double()).flip(0)
    low, high = found.interval()
    assert bool(found.resolved.all())
    assert bool(((low.double() <= truth) & (truth <= high.double())).all())


def test_trace_does_not_move_the_global_random_state():
    before = torch.get_rng_state()
    first, again = trace(torch.eye(5)).value, trace(torch.eye(5)).value
    assert first == again
    assert torch.equal(torch.get_rng_state(), before)


def test_along_counts_what_it_reads():
    loss, w, data, _ = problem(2000)
    source = Hessian(loss, [w], loader(data, 32))
    found = spectrum(source, 2)
    measured = found.along(source, points=100)
    assert measured.products == 64
    assert measured.data_points >= 256


def test_our_algebra_is_not_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = spectrum(torch.diag(torch.arange(1.0, 30.0)), 2)
    assert found.values.dtype == torch.float32
    close(found.vectors.mT @ found.vectors, torch.eye(2), 1e-4)


def test_bounds_order_at_every_level():
    loss, w, data, _ = problem(2000)
    top, total = largest(Hessian(loss, [w], loader(data, 32))), trace(Hessian(loss, [w], loader(data, 32)))
    for estimate in (top, total):
        bounds = [estimate.upper(level) for level in (0.01, 0.2, 0.4, 0.5, 0.6, 0.9, 0.99)]
        assert bounds == sorted(bounds)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda loss, w, data: Hessian(loss, [w, w], [data]), ValueError, "each parameter once"),
        (lambda loss, w, data: Hessian(loss, None, [data]), TypeError, "params: expected tensors"),
        (lambda loss, w, data: Hessian(loss, nn.Linear(2, 2), [data]), TypeError, "params: expected tensors"),
        (lambda loss, w, data: Hessian(loss, [w], [data], generator=5), TypeError, "generator: expected"),
        (lambda loss, w, data: Hessian(loss, [w], [data], split="no"), TypeError, "split: expected True or False"),
        (lambda loss, w, data: spectrum(Hessian(loss, [w], data), 2), ValueError, "differ|share dimension 0"),
        (lambda loss, w, data: Hessian(lambda b: loss(b) * float("nan"), [w], [data]).gradient(), ValueError, "finite"),
        (
            lambda loss, w, data: spectrum(Hessian(loss, [w], [data]), 5, directions=3),
            ValueError,
            "directions: expected",
        ),
        (
            lambda loss, w, data: GaussNewton(lambda x: x @ w, torch.sum, [w], [(*data, 1)]).gradient(),
            TypeError,
            "of 3",
        ),
    ],
)
def test_bad_input(call, error, message):
    loss, w, data, _ = problem(32)
    with pytest.raises(error, match=message):
        call(loss, w, data)
