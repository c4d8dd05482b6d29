"""The step: Lanczos from below, and the rate that holds where a step leads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import infhess
from infhess.curvature.batch_source import Hessian
from infhess.optim.controllers.step_length import backtracked, largest_curvature, tangents_meet
from infhess.preconditioners.scaling import identity
from util import F64, close, randn, spectrum


@pytest.mark.parametrize("iterations", [1, 3, 6])
def test_lanczos_is_a_lower_bound_that_reaches_the_largest_eigenvalue(iterations):
    A = spectrum([9.0, 5.0, 2.0, 1.0, 0.5, -3.0])
    w = nn.Parameter(randn(6))
    source = infhess.Hessian(lambda batch: 0.5 * w @ A @ w * batch.mean(), [w], [torch.ones(2, dtype=F64)])
    found = largest_curvature(source, source.local(torch.ones(2, dtype=F64)), identity([6], source.like), iterations)
    g = A @ w.detach()
    first = torch.linalg.vector_norm(A @ g) / torch.linalg.vector_norm(g)
    assert float(first) - 1e-9 <= found.value <= 9.0 + 1e-9
    assert source.products <= iterations
    if iterations == 1:
        close(torch.tensor(found.value, dtype=F64), first, 1e-9)
    if iterations == 6:
        close(torch.tensor(found.value), torch.tensor(9.0), 1e-2)
        assert found.negative


@pytest.mark.parametrize("curving", [False, True])
def test_a_rate_holds_on_a_quadratic_and_is_cut_where_curvature_explodes(curving):
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.5]], dtype=torch.float64)

    def loss(batch):
        z = batch[0] @ w
        return (z.exp() - 40 * z).mean() if curving else (z - 40).square().mean() / 2

    source = Hessian(loss, [w], [(x,)])
    local = source.local((x,))
    H = torch.stack([local.product(e) for e in torch.eye(3).double()])
    rate = 1 / float(torch.linalg.eigvalsh(H)[-1])
    found = backtracked(source, (x,), local, identity([3], source.like), rate)
    if not curving:
        assert found == rate
        return
    end = torch.zeros(3).double() - found * local.gradient()
    mean = torch.zeros(3, 3).double()
    for share in torch.linspace(0, 1, 1001):
        p = (x @ (share * end)).exp()
        mean += (x.mT * p / len(x)) @ x / 1001
    change = mean @ end
    assert found < rate / 2
    assert float(change.norm() / end.norm()) * found <= 1.42
    assert not w.detach().any()


@pytest.mark.parametrize("products", ["exact", "difference"])
def test_a_rate_is_cut_where_a_saturated_loss_would_rise(products):
    """Three points of four are far on the wrong side: there is no curvature but L2's, at neither end of a step across the bend.

    The slope after it is a third of that before, so its change is within what a rate that holds may make of it.
    """
    w = torch.tensor([50.0], dtype=F64, requires_grad=True)
    x = 1000 * torch.ones(32, 1, dtype=F64)
    y = torch.where(torch.arange(32) % 4 > 0, -1.0, 1.0).double()

    def loss(batch):
        return torch.nn.functional.softplus(-batch[1] * (batch[0] @ w)).mean() + 1e-4 * w.square().sum()

    source = Hessian(loss, [w], [(x, y)], products=products)
    local, rate = source.local((x, y)), 1e4
    before, g = float(loss((x, y)).detach()), local.gradient()
    found = backtracked(source, (x, y), local, identity([1], source.like), rate)
    with torch.no_grad():
        w -= found * g
        after = float(loss((x, y)))
        w += found * g
    assert 0 < found < rate
    assert after < before / 10
    assert w.item() == 50.0


@pytest.mark.parametrize(("then", "bend", "now"), [(-1.0, 0.3, 2.0), (-3.0, 1e-9, 1.0), (-1e3, 0.5, 1e3)])
def test_tangents_meet_at_the_kink_of_two_lines(then, bend, now):
    rise = then * bend + now * (1 - bend)
    assert tangents_meet(then, now, rise) == pytest.approx(bend, rel=1e-6)


def lanczos(A, g, root, iterations):
    """Values and lowest Ritz values after each iteration on R A R from R g, with every vector made orthogonal twice."""
    B, q = root[:, None] * A * root, root * g
    Q, values, lowest = [q / q.norm()], [], []
    for _ in range(iterations):
        r = B @ Q[-1]
        for _ in range(2):
            r = r - sum((v @ r) * v for v in Q)
        Q.append(r / r.norm())
        V = torch.stack(Q, 1)
        values.append(float(torch.linalg.matrix_norm(V.mT @ B @ V[:, :-1], 2)))
        lowest.append(float(torch.linalg.eigvalsh(V[:, :-1].mT @ B @ V[:, :-1])[0]))
    return values, lowest


@pytest.mark.parametrize("iterations", [1, 2, 5, 9])
@pytest.mark.parametrize("seed", range(3))
def test_lanczos_in_another_scaling_is_that_of_the_dense_matrix_until_it_settles(seed, iterations):
    A, root, w = (
        spectrum(torch.linspace(0.1, 9.0, 12).tolist(), seed),
        1 + randn(12, seed=seed).abs(),
        randn(12, seed=5),
    )
    p, one = nn.Parameter(w), torch.ones(2, dtype=F64)
    source = infhess.Hessian(lambda batch: 0.5 * p @ A @ p * batch.mean(), [p], [one])
    found = largest_curvature(source, source.local(one), identity([12], source.like, root), iterations)
    values, _ = lanczos(A, A @ w, root, iterations)
    settled = [j for j in range(1, iterations) if abs(values[j] - values[j - 1]) < 0.01 * values[j]]
    last = settled[0] if settled else iterations - 1
    assert source.products == last + 1
    assert found.value == pytest.approx(values[last], rel=1e-9)
    assert (found.length, found.gradient) == pytest.approx((float((root**2 * (A @ w)).norm()), float((A @ w).norm())))
    assert not found.negative


@pytest.mark.parametrize(("lowest", "negative"), [(-0.9e-3, False), (-1.1e-3, True), (0.5, False)])
def test_curvature_is_negative_below_minus_a_thousandth_of_the_largest(lowest, negative):
    A, p, one = (
        torch.diag(torch.tensor([1.0, lowest], dtype=F64)),
        nn.Parameter(torch.ones(2, dtype=F64)),
        torch.ones(2),
    )
    source = infhess.Hessian(lambda batch: 0.5 * p @ A @ p + (p.sum() * batch.mean()).double(), [p], [one])
    assert largest_curvature(source, source.local(one), identity([2], source.like), 2).negative is negative


def test_a_rate_is_cut_to_a_fourth_or_to_what_the_step_met_until_it_holds():
    # e^w from 0: a step of −η leads to e^{−η}, and from the other side to e^{η}: the mean curvature is (e^η − 1)/η.
    w, x = nn.Parameter(torch.zeros(1, dtype=F64)), torch.ones(2, dtype=F64)
    source = Hessian(lambda b: (-w).exp().sum() + 3 * w.exp().sum() * b.mean() - 40 * w.sum(), [w], [x])
    g = -1 + 3 - 40.0
    for rate in (2.0, 0.5, 0.12, 0.05, 0.01):
        expected = rate
        for _ in range(16):
            end = -expected * g
            value = abs(g - (-math.exp(-end) + 3 * math.exp(end) - 40)) / (expected * abs(g))
            if value * expected <= 1.4:
                break
            expected = max(expected / 4, 1 / value)
        found = backtracked(source, x, source.local(x), identity([1], source.like), rate)
        assert found == pytest.approx(expected, rel=1e-9)


def test_a_rate_is_cut_sixteen_times_at_the_most():
    w, x = nn.Parameter(torch.ones(1, dtype=F64)), torch.ones(2, dtype=F64)
    source = Hessian(lambda b: torch.where(w == 1, w, w * torch.inf).square().sum() * b.mean(), [w], [x])
    found = backtracked(source, x, source.local(x), identity([1], source.like), 1.0)
    assert found == 4.0**-16
