"""Small and awkward data: passes, remainders, replacement, batch statistics, hooks. Zero-width intervals only where exact."""

from __future__ import annotations

import collections
import copy
import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import infhess
from infhess import GaussNewton, Hessian, Products, largest, spectrum, trace
from util import F64, close, randn


def problem(n, seed=0, d=8):
    """Least squares on n points: loss, parameters, data, and the exact top three eigenvalues."""
    X, y = randn(n, d, seed=seed) * torch.linspace(3, 0.3, d, dtype=F64), randn(n, seed=seed + 1)
    w = torch.zeros(d, dtype=F64, requires_grad=True)
    return (lambda b: ((b[0] @ w - b[1]) ** 2).mean()), w, (X, y), torch.linalg.eigvalsh(2 * X.mT @ X / n).flip(0)[:3]


def loader(data, size, seed=0, **options):
    return DataLoader(
        TensorDataset(*data), size, shuffle=True, generator=torch.Generator().manual_seed(seed), **options
    )


def replaced(data, size, seed=0):
    dataset = TensorDataset(*data)
    sampler = RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(seed))
    return DataLoader(dataset, size, sampler=sampler)


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


CASES = {
    "a pass that ends in the middle": (130, lambda data, seed: loader(data, 32, seed)),
    "two batches of 64 of 150": (150, lambda data, seed: loader(data, 64, seed)),
    "dropped remainders": (100, lambda data, seed: loader(data, 30, seed, drop_last=True)),
    "with replacement": (100, lambda data, seed: replaced(data, 20, seed)),
    "a list of batches": (120, lambda data, seed: list(zip(*(t.split(15) for t in data)))),
}


@pytest.mark.parametrize("case", CASES)
def test_small_data_is_covered(case):
    n, batches = CASES[case]
    hits = []
    for seed in range(25):
        loss, w, data, truth = problem(n, seed)
        low, high = spectrum(Hessian(loss, [w], batches(data, seed)), 3).interval()
        hits.append((low <= truth) & (truth <= high))
    assert float(torch.stack(hits).double().mean()) >= 0.88


def test_what_is_not_known_to_come_once_a_pass_has_no_population():
    _, _, data, _ = problem(96)
    assert infhess.curvature.batches.population(loader(data, 16)) == 96
    assert infhess.curvature.batches.population(replaced(data, 16)) is None
    assert infhess.curvature.batches.population(DataLoader([data] * 5, batch_size=None)) is None
    assert infhess.curvature.batches.population([data, data]) == 192


def test_a_random_loss_over_all_data_still_has_error_bars():
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).double()
    _, _, data, _ = problem(128)
    found = spectrum(Hessian(lambda b: nn.functional.mse_loss(net(b[0])[:, 0], b[1]), net.parameters(), [data]), 2)
    assert float(found.std.min()) > 0


# ---- the stop rule ends


def test_rtol_ends_without_splitting_and_for_callables_that_read_points():
    loss, w, data, _ = problem(4000)
    assert spectrum(Hessian(loss, [w], loader(data, 16), split=False), 2, 0.1).stopped == "tolerance"
    g = torch.Generator().manual_seed(0)

    def product(s):
        X = torch.randn(16, 20, generator=g, dtype=F64)
        return X.mT @ (X @ s) / 16

    rounds = list(infhess.spectrum_rounds(Products(product, None, 20, points=16), 1, 0.15))
    assert rounds[-1].stopped in ("tolerance", "budget")
    assert rounds[-1].data_points > rounds[0].data_points
    assert list(infhess.spectrum_rounds(Products(product, None, 20), 1, 0.15))[-1].stopped in ("tolerance", "budget")


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
    assert found.stopped in ("tolerance", "budget")
    assert found.data_points < 40000


# ---- the matrix is that of the loss as it is


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_weight_norm_differentiates_twice(norm):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3)).double()
    data = (randn(16, 6), randn(16, 3, seed=1))
    loss = lambda b: nn.functional.mse_loss(net(b[0]), b[1])  # noqa: E731
    exact, difference = (Hessian(loss, net.parameters(), [data], products=p) for p in ("exact", "difference"))
    s = randn(exact.size)
    close(exact.matvec(s), difference.matvec(s), 1e-7)


def test_batches_that_share_statistics_are_not_cut():
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    _, _, data, _ = problem(256)
    sizes = []

    def loss(b):
        sizes.append(len(b[0]))
        return nn.functional.mse_loss(net(b[0])[:, 0], b[1])

    spectrum(Hessian(loss, net.parameters(), loader(data, 64)), 2)
    assert set(sizes[1:]) == {64}


def test_hooks_on_parameters_and_forward_passes_that_renormalise_are_left_alone():
    net = nn.Linear(8, 1).double()
    _, _, data, _ = problem(32)
    loss = lambda b: nn.functional.mse_loss(net(b[0])[:, 0], b[1])  # noqa: E731
    plain = Hessian(loss, net.parameters(), [data]).matvec(torch.ones(9))
    calls = []
    handle = net.weight.register_hook(lambda g: calls.append(1) or g * 0)
    close(Hessian(loss, net.parameters(), [data]).matvec(torch.ones(9)), plain, 1e-12)
    assert not calls
    loss(data).backward()
    assert calls
    handle.remove()
    table = nn.Embedding(5, 3, max_norm=0.5).double()
    before = table.weight.detach().clone()
    source = Hessian(lambda x: table(x).square().mean(), table.parameters(), [torch.tensor([0, 1, 2, 3])])
    source.gradient()
    source.matvec(torch.ones(15))
    assert torch.equal(table.weight, before)


class Direct(nn.Module):
    """Uses a child by its forward, and its buffers by function: hooks on the child never run."""

    def __init__(self, by):
        super().__init__()
        self.bn, self.by = nn.BatchNorm1d(8), by

    def forward(self, x):
        if self.by == "forward":
            return self.bn.forward(x)
        return nn.functional.batch_norm(
            x, self.bn.running_mean, self.bn.running_var, self.bn.weight, self.bn.bias, True
        )


@pytest.mark.parametrize("by", ["forward", "function"])
def test_buffers_of_children_that_are_not_called_are_kept(by):
    net = Direct(by).double()
    before = copy.deepcopy(net.state_dict())
    source = Hessian(lambda b: net(b[0]).square().mean(), net.parameters(), [problem(32)[2]])
    source.matvec(torch.ones(16))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_checkpoints():
    inner, w = nn.Linear(8, 8).double(), torch.ones(8, dtype=F64, requires_grad=True)
    data = [problem(32)[2]]
    plain = Hessian(lambda b: (torch.tanh(inner(b[0])) @ w).square().mean(), [*inner.parameters(), w], data)
    checked = Hessian(
        lambda b: (torch.tanh(checkpoint(inner, b[0], use_reentrant=False)) @ w).square().mean(),
        [*inner.parameters(), w],
        data,
    )
    s = randn(80)
    close(checked.matvec(s), plain.matvec(s), 1e-10)
    reentrant = Hessian(
        lambda b: (torch.tanh(checkpoint(inner, b[0].requires_grad_(), use_reentrant=True)) @ w).square().mean(),
        list(inner.parameters()),
        data,
    )
    with pytest.raises(infhess.DoubleBackwardError, match="use_reentrant=False"):
        reentrant.matvec(torch.ones(72))


def test_sparse_gradients_are_densified_for_differences():
    table = nn.Embedding(5, 3, sparse=True).double()
    x = torch.tensor([0, 1, 2, 3])
    dense = nn.Embedding(5, 3).double()
    dense.load_state_dict(table.state_dict())
    loss = lambda net: lambda x: torch.tanh(net(x)).square().mean()  # noqa: E731
    s = randn(15)
    expected = Hessian(loss(dense), dense.parameters(), [x]).matvec(s)
    close(Hessian(loss(table), table.parameters(), [x], products="difference").matvec(s), expected, 1e-6)


def test_freezing_after_construction():
    loss, w, data, _ = problem(32)
    v = torch.ones(2, dtype=F64, requires_grad=True)
    source = Hessian(lambda b: loss(b) + v.square().sum(), [w, v], [data])
    full = source.matvec(torch.ones(10))
    v.requires_grad_(False)
    close(source.matvec(torch.ones(10)), torch.cat([full[:8], torch.zeros(2)]), 1e-12)
    v.requires_grad_(True)
    close(source.matvec(torch.ones(10)), full, 1e-12)


def test_mappings_and_lists_of_one_thing_a_point():
    loss, w, (X, y), _ = problem(32)
    lengths = []

    def watched(b):
        lengths.append((len(b["x"]), len(b["names"])))
        return loss((b["x"], b["y"]))

    for kind in (dict, collections.UserDict, lambda d: collections.defaultdict(list, d)):
        batch = kind({"x": X, "y": y, "names": [str(i) for i in range(32)], "note": "whole"})
        found = spectrum(Hessian(watched, [w], [batch, batch]), 2)
        assert found.values.shape == (2,)
    assert all(a == b for a, b in lengths)
    assert min(lengths) < (32, 32)


# ---- exact matrices


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


# ---- counts and state


def test_trace_does_not_move_the_global_random_state():
    before = torch.get_rng_state()
    first, again = trace(torch.eye(5)).value, trace(torch.eye(5)).value
    assert first == again
    assert torch.equal(torch.get_rng_state(), before)


def test_a_refused_vector_costs_nothing_and_numpy_is_taken():
    loss, w, data, _ = problem(32)
    source = Hessian(loss, [w], [data])
    for bad in (torch.ones(3), torch.ones(8, dtype=torch.complex64), "s", torch.ones(8, 2)):
        with pytest.raises((ValueError, TypeError)):
            source.matvec(bad)
    assert (source.products, source.data_points) == (0, 0)
    close(source.matvec(torch.ones(8).numpy()), source.matvec(torch.ones(8)), 1e-12)


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


def test_padded_batches_that_cannot_be_joined_name_the_remedy():
    w = torch.ones(6, dtype=F64, requires_grad=True)
    batches = [randn(16, t, 6, seed=t) for t in (3, 5, 4, 7)]
    loss = lambda b: torch.tanh(b @ w).square().mean()  # noqa: E731
    with pytest.raises(ValueError, match="split=False"):
        spectrum(Hessian(loss, [w], batches), 2)
    assert spectrum(Hessian(loss, [w], batches, split=False), 2).values.shape == (2,)
