"""Intervals where little is known: one chunk, data in order, groups of unequal size."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from infhess import Hessian, largest, spectrum, trace
from infhess.spectra.student import skewed_mean, weighted_mean
from util import F64, close, randn


def least_squares(X):
    """The loss whose Hessian is XᵀX/n, and its parameters."""
    w = torch.zeros(X.shape[1], dtype=F64, requires_grad=True)
    return (lambda b: (b[0] @ w).square().mean() / 2), w


# ---- one chunk


def dropout_net():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).double()
    return net, (lambda b: nn.functional.mse_loss(net(b[0])[:, 0], b[1]))


def test_one_uncut_batch_with_dropout_has_no_error_bar():
    net, loss = dropout_net()
    data = (randn(128, 8), randn(128, seed=1))
    source = Hessian(loss, net.parameters(), [data], split=False)
    with pytest.warns(UserWarning, match="nothing is known of the noise"):
        found = spectrum(source, 2)
    assert bool(torch.isfinite(found.values).all())
    assert bool(found.std.isnan().all())
    assert not bool(found.resolved.any())
    assert all(
        bool(bound.isnan().all()) for bound in (*found.interval(), *found.interval(0.5, joint=True), found.upper())
    )
    with pytest.warns(UserWarning, match="pass several batches"):
        along = found.along([data])
    assert bool(torch.stack([along.std, *along.interval()]).isnan().all())


def test_unknown_noise_ends_the_rounds():
    net, loss = dropout_net()
    source = Hessian(loss, net.parameters(), [(randn(64, 8), randn(64, seed=1))], split=False)
    with pytest.warns(UserWarning, match="nothing is known"):
        assert spectrum(source, 1, 0.01).stopped == "noise unknown"
    with pytest.warns(UserWarning, match="nothing is known"):
        assert largest(source).std != 0


def test_one_data_point_with_dropout_has_no_error_bar():
    net, loss = dropout_net()
    with pytest.warns(UserWarning, match="nothing is known"):
        found = spectrum(Hessian(loss, net.parameters(), [(randn(1, 8), randn(1, seed=1))]), 1)
    assert bool(found.std.isnan().all())


@pytest.mark.parametrize("n", [1, 50])
def test_one_uncut_batch_of_all_the_data_is_exact(n):
    X = randn(n, 6)
    loss, w = least_squares(X)
    found = spectrum(Hessian(loss, [w], [(X,)], split=False), 1)
    truth = torch.linalg.eigvalsh(X.mT @ X / n)[-1:]
    close(found.values, truth, 1e-8)
    assert float(found.std) == 0
    along = found.along([(X,)])
    assert float(along.std) == 0
    for bound in along.interval():
        close(bound, truth, 1e-8)


def test_several_uncut_batches_with_dropout_have_error_bars():
    net, loss = dropout_net()
    batches = [(randn(32, 8, seed=s), randn(32, seed=s + 9)) for s in range(2)]
    found = spectrum(Hessian(loss, net.parameters(), batches, split=False), 1)
    assert float(found.std) > 0


# ---- data in order


def sorted_data(n=2000):
    """Points whose curvature grows from the first to the last."""
    X = randn(n, 5) * torch.linspace(1, 5, n, dtype=F64)[:, None].flip(0)
    return X, torch.linalg.eigvalsh(X.mT @ X / n)[-1]


def test_a_part_of_a_pass_in_order_warns():
    X, _ = sorted_data()
    loss, w = least_squares(X)
    source = Hessian(loss, [w], DataLoader(TensorDataset(X), 32))
    with pytest.warns(UserWarning, match="shuffle=True"):
        found = spectrum(source, 1)
    assert bool((found._ritz.se > 0).all())
    with pytest.warns(UserWarning, match="shuffle=True"):
        found.along(DataLoader(TensorDataset(X), 32))
    with pytest.warns(UserWarning, match="shuffle=True"):
        trace(Hessian(loss, [w], DataLoader(TensorDataset(X), 32)))


def test_it_warns_once():
    X, _ = sorted_data()
    loss, w = least_squares(X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spectrum(Hessian(loss, [w], DataLoader(TensorDataset(X), 32)), 1)
    assert len(caught) == 1


def test_a_part_of_a_pass_in_order_is_no_sample_without_replacement():
    X, _ = sorted_data(320)
    loss, w = least_squares(X)
    vectors = [torch.ones(5, dtype=F64)]
    for ordered, factor in ((True, 1.0), (False, 0.6)):
        source = Hessian(loss, [w], DataLoader(TensorDataset(X), 32, shuffle=not ordered))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert source.fresh_products(vectors, 128, 4).population_factor == pytest.approx(factor)


def test_a_whole_pass_in_order_is_exact_and_does_not_warn():
    X, truth = sorted_data(100)
    loss, w = least_squares(X)
    found = spectrum(Hessian(loss, [w], DataLoader(TensorDataset(X), 32)), 1)
    close(found.values[0], truth, 1e-8)
    assert float(found.std) == 0
    trace(Hessian(loss, [w], DataLoader(TensorDataset(X), 32)))


# ---- groups of unequal size


def test_groups_of_unequal_size_do_not_widen_the_interval_of_a_noise_free_curvature():
    w = torch.zeros(1, dtype=F64, requires_grad=True)
    loss = lambda x: (w**2).sum() * 2.5 + 0 * x.mean()  # noqa: E731
    sizes = [3, 17, 8, 40, 1] * 20
    batches = [randn(n, 1, seed=i) for i, n in enumerate(sizes)]
    found = spectrum(Hessian(loss, [w], batches), 1)
    along = found.along(iter(batches))
    close(torch.stack([along.values, *along.interval()]), torch.full((3, 1), 5.0, dtype=F64), 1e-12)
    assert float(along.std) < 1e-12


def test_equal_weights_are_the_plain_mean():
    x = randn(12, 3).exp()
    mean, variance = weighted_mean(x, torch.full((12,), 1 / 12, dtype=F64))
    close(mean, x.mean(0))
    close(variance, x.var(0) / 12)
    for plain, weighted in zip(skewed_mean(x, 0.9), skewed_mean(x, 0.9, weights=torch.full((12,), 1 / 12))):
        close(plain, weighted, 1e-6)


def test_the_variance_of_means_of_unequal_groups_is_unbiased():
    sizes = torch.tensor([1, 2, 4, 8, 16, 32], dtype=F64)
    w, g = sizes / sizes.sum(), torch.Generator().manual_seed(0)
    x = torch.randn(len(w), 20000, generator=g, dtype=F64) / w.sqrt()[:, None]  # Var(Σ w x) = 1
    mean, variance = weighted_mean(x, w)
    close(variance.mean(), mean.var(), 0.05)


def test_intervals_of_unequal_groups_cover():
    sizes = torch.tensor([4, 8, 16, 32] * 6, dtype=F64)
    w, g = sizes / sizes.sum(), torch.Generator().manual_seed(0)
    points = torch.randn(int(sizes.sum()), 2000, generator=g, dtype=F64).square()  # skewed, of mean 1
    x = torch.stack([part.mean(0) for part in points.split(sizes.int().tolist())])
    low, high = skewed_mean(x, 0.95, weights=w)
    assert 0.93 <= float(((low <= 1) & (high >= 1)).double().mean()) <= 0.985
