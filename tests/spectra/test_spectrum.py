"""Eigenvalues with intervals: exact matrices, the stop rule, counts, determinism, forms."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infhess
from curvature_cases import digits_logistic, digits_mlp
from infhess import GaussNewton, Hessian, largest, spectrum, trace
from infhess.cli.shuffled import Shuffled
from infhess.curvature import mapped
from small_data import VALUES, gaussian_source
from util import F64, close, randn
from util import spectrum as matrix_with


def test_an_exact_matrix_has_its_eigenvalues():
    A = matrix_with(VALUES)
    found = spectrum(A, 5)
    close(found.values, VALUES[:5], 2e-3)
    low, high = found.interval()
    assert bool(((low <= VALUES[:5] * (1 + 1e-9)) & (VALUES[:5] <= high * (1 + 1e-9))).all())
    assert bool(found.resolved.all())
    close((found.vectors.mT @ found.vectors), torch.eye(5), 1e-10)


def test_all_the_data_at_once_is_exact():
    problem = digits_logistic()
    truth = torch.linalg.eigvalsh(problem.dense()).flip(0)[:3]
    source = Hessian(
        lambda b: problem.loss(problem.model(w, b[0]), b[1]),
        [w := problem.w.clone().requires_grad_()],
        [(problem.x, problem.y)],
    )
    found = spectrum(source, 3, 1e-2)
    close(found.values, truth, 2e-3)
    assert float(found.std.max()) == 0.0
    assert found.stopped in ("tolerance", "all data")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_tiny_matrices(size):
    A = torch.diag(torch.arange(1.0, size + 1)).double()
    close(spectrum(A, size).values, torch.arange(size, 0, -1).double(), 1e-9)
    close(largest(A).value, float(size), 1e-9)


def test_low_rank_and_zero_matrices_end():
    A = torch.diag(torch.tensor([3.0, 1.0] + [0.0] * 20)).double()
    found = spectrum(A, 2)
    close(found.values, torch.tensor([3.0, 1.0]), 1e-6)
    assert bool((spectrum(torch.zeros(9, 9, dtype=F64), 1).values == 0).all())


def test_negative_curvature_is_reported():
    A = torch.diag(torch.tensor([2.0, 1.0, -7.0] + [0.1] * 30)).double()
    found = spectrum(A, 2)
    close(found.lowest[0], -7.0, 1e-3)
    close(found.values, torch.tensor([2.0, 1.0]), 1e-2)


def test_it_goes_on_until_the_tolerance_is_met():
    problem = digits_mlp()
    g = torch.Generator().manual_seed(1)
    rounds = list(infhess.spectrum_rounds(problem.source(32, g), 3, 0.03, generator=g))
    assert len(rounds) > 1
    assert [r.stopped for r in rounds[:-1]] == ["goes on"] * (len(rounds) - 1)
    last = rounds[-1]
    low, high = last.interval(0.95)
    assert last.stopped in ("tolerance", "all data")
    assert float(((high - low) / 2 / last.values.abs()).max()) <= 0.03 or last.stopped == "all data"
    assert last.rounds == len(rounds)


def test_it_ends_with_the_budget_and_says_so():
    problem = digits_mlp()
    g = torch.Generator().manual_seed(1)
    found = spectrum(problem.source(32, g), 3, 1e-3, budget=5000, generator=g)
    assert found.stopped == "budget"
    assert spectrum(gaussian_source()[0], 3).stopped == "one round"
    assert spectrum(gaussian_source()[0], 3, 1e-2, budget=3000).stopped == "budget"


class CountedBatches:
    """Counts by itself what is read."""

    def __init__(self, data, size):
        self.loader, self.read = Shuffled(data, size, torch.Generator().manual_seed(0)), 0

    def __iter__(self):
        for batch in self.loader:
            self.read += len(batch[0])
            yield batch


@pytest.mark.parametrize(
    "call", [lambda s: spectrum(s, 4), lambda s: largest(s), lambda s: trace(s, probes=9, sketch=0)]
)
def test_the_counts_are_those_of_a_source_that_counts_by_itself(call, monkeypatch):
    monkeypatch.setattr(mapped, "MOST", 0)  # one batch after the other
    problem = digits_logistic()
    w, batches, calls = problem.w.clone().requires_grad_(), CountedBatches((problem.x, problem.y), 48), []

    def loss(b):
        calls.append(len(b[0]))
        return problem.loss(problem.model(w, b[0]), b[1])

    source = Hessian(loss, [w], batches)
    found = call(source)
    assert found.data_points == source.data_points == batches.read
    assert found.products == source.products == len(calls)  # one product a graph here
    assert sum(calls) == batches.read


def test_the_same_seed_gives_the_same_numbers():
    def once():
        problem, g = digits_mlp(), torch.Generator().manual_seed(3)
        return spectrum(problem.source(32, g), 3, generator=g)

    first, again = once(), once()
    assert torch.equal(first.values, again.values)
    assert torch.equal(first.vectors, again.vectors)


def test_float32_agrees_with_float64():
    problem = digits_logistic()
    single, double = (
        spectrum(problem.source(32, g := torch.Generator().manual_seed(3), dtype), 3, generator=g)
        for dtype in (torch.float32, F64)
    )
    assert single.values.dtype == torch.float32
    assert single.interval()[0].dtype == torch.float32
    close(single.values, double.values, 0.2)


def test_a_loss_that_is_not_a_mean_over_points_is_not_sliced():
    sizes, w = [], torch.zeros(6, dtype=F64, requires_grad=True)

    def loss(x):
        sizes.append(len(x))
        return (x @ w).square().sum()

    source = Hessian(loss, [w], DataLoader(randn(64, 6), batch_size=16), split=False)
    found = spectrum(source, 2)
    assert set(sizes) == {16}
    assert len(sizes) == 4  # all of the data is held with its graphs
    assert found.products % 4 == 0


def test_gauss_newton_and_named_parameters():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    data = TensorDataset(randn(256, 4), torch.randint(3, (256,), generator=torch.Generator().manual_seed(0)))
    loader = DataLoader(data, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0))
    g = GaussNewton(model, nn.functional.cross_entropy, list(model[2].parameters()), loader)
    found = spectrum(g, 3)
    assert found.vectors.shape == (18, 3)
    assert float(found.lowest[0]) > -0.02 * float(found.values[0])
    assert infhess.infer(g, 6).eigh(2).values.shape == (2,)


def test_joint_intervals_are_wider_and_levels_order():
    found = spectrum(gaussian_source()[0], 5)
    (a, b), (c, d), (e, f) = found.interval(0.8), found.interval(0.95), found.interval(0.95, joint=True)
    assert bool(((e <= c) & (c <= a) & (b <= d) & (d <= f)).all())
    top = largest(gaussian_source()[0])
    assert top.upper(0.5) < top.upper(0.9) < top.upper(0.99)
    total = trace(gaussian_source()[0])
    assert total.upper(0.6) < total.upper(0.99)
    assert total.interval(0.5)[0] > total.interval(0.99)[0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda A: spectrum(A, 0), ValueError, "k: expected 1 to 4"),
        (lambda A: spectrum(A, 5), ValueError, "k: expected 1 to 4"),
        (lambda A: spectrum(A, 1, -0.1), ValueError, "rtol: expected a number above 0"),
        (lambda A: spectrum(A, 1, budget=0), ValueError, "budget: expected 1 or more"),
        (lambda A: spectrum("A"), TypeError, "source: expected a source"),
        (lambda A: spectrum(A, 1).interval(1.5), ValueError, "level: expected a number between 0 and 1"),
        (lambda A: spectrum(A, 1).interval(0), ValueError, "level: expected a number above 0"),
        (lambda A: spectrum(A, 1).along([A]), TypeError, "along: expected fresh batches, or a source"),
        (lambda A: trace(A, probes=2), ValueError, "probes: expected 4 or more"),
        (lambda A: spectrum(A * float("nan"), 1), ValueError, "product 0 holds NaN or infinity"),
        (lambda A: trace(A * float("inf")), ValueError, "NaN or infinity"),
        (lambda A: spectrum(A, 1, generator=1), TypeError, "generator: expected a torch.Generator"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.eye(4, dtype=F64))
