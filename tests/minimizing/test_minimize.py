"""The whole of `minimize` against dense solutions in double precision."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import infhess
from convex_cases import huber, logistic, poisson, small, softmax, squares
from minimizing_cases import batches_of, minimized

CASES = {
    "squares": lambda: small(squares, n=2000),
    "logistic": lambda: small(logistic, l2=1e-4, n=2000),
    "softmax": lambda: small(softmax, 5, l2=1e-4, n=2000),
    "poisson": lambda: small(poisson, l2=1e-4, n=2000),
    "huber": lambda: small(huber, l2=1e-6, n=2000),
}


@pytest.mark.parametrize("size", [16, 256])
@pytest.mark.parametrize("name", CASES)
def test_the_gap_is_reached_and_known(name, size):
    _, result, gap, _ = minimized(CASES[name](), size, gap=1e-8)
    assert result.stopped == "gap"
    assert gap <= 1e-8
    assert result.gap_upper(0.95) <= 1e-8
    assert result.passes <= 13


def test_a_pool_smaller_than_the_data(monkeypatch):
    """A sample of the data, secants of what it misses, and a step length from held-out points."""
    monkeypatch.setattr("infhess.minimizing.choice.ALL", 0)
    monkeypatch.setattr("infhess.minimizing.choice.POOL_POINTS", 512)
    _, result, gap, _ = minimized(small(logistic, l2=1e-4, n=4000), gap=1e-8)
    assert (result.stopped, result.history[1]["pool"]) == ("gap", 512)
    assert gap <= 1e-8
    assert any(row["step"] not in (1.0, None) for row in result.history[2:])


def test_a_pool_grows_where_contraction_is_slow(monkeypatch):
    monkeypatch.setattr("infhess.minimizing.choice.ALL", 0)
    monkeypatch.setattr("infhess.minimizing.choice.POOL_POINTS", 90)
    _, result, gap, _ = minimized(small(softmax, 5, l2=1e-5, n=3000), gap=1e-8)
    assert gap <= 1e-8
    assert result.history[-1]["pool"] > 90
    assert any("contraction was slow" in note for note in result.notes)


def test_secants_around_p_where_the_pool_has_no_full_rank(monkeypatch):
    monkeypatch.setattr("infhess.minimizing.choice.ALL", 0)
    monkeypatch.setattr("infhess.minimizing.choice.POOL_POINTS", 40)
    monkeypatch.setattr("infhess.minimizing.choice.LARGEST_DENSE", 0)
    _, result, gap, _ = minimized(small(softmax, 5, l2=1e-3, n=3000), gap=1e-6, passes=100)
    assert (result.method, result.stopped) == ("L-BFGS around P", "gap")
    assert gap <= 1e-6


def test_several_tensors_and_a_loader():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 6, generator=g, dtype=torch.float64)
    y = x @ torch.randn(6, 2, generator=g, dtype=torch.float64) + 3
    model = torch.nn.Linear(6, 2, dtype=torch.float64)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True, generator=g)
    result = infhess.minimize(lambda b: (model(b[0]) - b[1]).square().mean(), model.parameters(), loader, gap=1e-10)
    X = torch.cat([x, torch.ones(1000, 1, dtype=x.dtype)], 1)
    exact = torch.linalg.lstsq(X, y).solution
    torch.testing.assert_close(model.weight, exact[:6].mT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.bias, exact[6], rtol=1e-4, atol=1e-4)
    assert result.data_points == 1000 * result.passes


def test_weights_of_points_are_part_of_the_loss():
    g = torch.Generator().manual_seed(0)
    x, y, c = (torch.randn(500, k, generator=g, dtype=torch.float64) for k in (4, 1, 1))
    c = c.exp()
    w = torch.zeros(4, 1, dtype=torch.float64, requires_grad=True)
    batches = list(zip(x.split(50), y.split(50), c.split(50)))
    result = infhess.minimize(lambda b: (b[2] * (b[0] @ w - b[1]).square()).mean(), [w], batches, gap=1e-12)
    exact = torch.linalg.solve(x.mT @ (c * x), x.mT @ (c * y))
    torch.testing.assert_close(w.detach(), exact, rtol=1e-5, atol=1e-5)
    assert result.stopped == "gap"


def test_single_precision_goes_as_far_as_it_can():
    _, result, gap, _ = minimized(small(logistic, l2=1e-4, n=2000), dtype=torch.float32, gap=1e-6)
    assert (result.stopped, gap <= 1e-6) == ("gap", True)
    _, result, gap, _ = minimized(small(logistic, l2=1e-4, n=2000), dtype=torch.float32, gap=1e-30)
    assert result.stopped == "precision"
    assert gap < 1e-6


def test_sparse_inputs():
    problem = small(squares, n=600)
    x, y = problem.data
    x = torch.where(x.abs() > 0.5, x, torch.zeros_like(x))
    w = torch.zeros(12, 1, dtype=torch.float64, requires_grad=True)
    batches = [(x[i : i + 100].to_sparse(), y[i : i + 100]) for i in range(0, 600, 100)]
    result = infhess.minimize(
        lambda b: (torch.sparse.mm(b[0], w)[:, 0] - b[1]).square().mean(), [w], batches, gap=1e-10
    )
    torch.testing.assert_close(w.detach()[:, 0], torch.linalg.lstsq(x, y[:, None]).solution[:, 0], rtol=1e-4, atol=1e-4)
    assert result.stopped == "gap"


def test_what_it_costs_is_what_was_read():
    problem, read = small(logistic, l2=1e-4, n=1000), []

    class Reading(list):
        def __iter__(self):
            for batch in super().__iter__():
                read.append(len(batch[0]))
                yield batch

    model = problem.model()
    result = infhess.minimize(problem.loss(model), model.parameters(), Reading(batches_of(problem, 100)), memory=1e5)
    assert not any(note.startswith("all the data") for note in result.notes)  # too much for a tenth of a megabyte
    assert sum(read) == result.data_points == 1000 * result.passes
    assert result.products == result.history[-1]["products"] > 0
    assert result.history[-1]["product_points"] == result.product_points


def test_the_same_result_twice():
    first, second = (minimized(small(logistic, l2=1e-4, n=1000))[0].weight for _ in range(2))
    assert torch.equal(first, second)


def test_grads_and_the_random_state_stay_as_they_were():
    problem = small(squares)
    model = problem.model()
    model.weight.grad = torch.ones_like(model.weight)
    before = torch.get_rng_state()
    infhess.minimize(problem.loss(model), model.parameters(), batches_of(problem, 50))
    assert torch.equal(model.weight.grad, torch.ones_like(model.weight))
    assert torch.equal(torch.get_rng_state(), before)
