"""Adam's scaling: against torch's own, ahead of a step and in it, and where there has never been a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from infhess.optim.scalings.diagonal import DiagonalScaling, counted, directions
from util import F64, close, randn

ahead = DiagonalScaling().ahead


def fresh(n):
    return {"step": torch.zeros(()), "exp_avg_sq": torch.zeros(n, dtype=F64)}


@pytest.mark.parametrize(("beta", "eps"), [(0.999, 1e-8), (0.5, 0.3), (0.0, 0.0)])
def test_directions_are_the_steps_of_adam_without_momentum_and_ahead_tells_the_next(beta, eps):
    w, own = nn.Parameter(torch.zeros(5, dtype=F64)), fresh(5)
    adam = torch.optim.Adam([w], lr=1.0, betas=(0.0, beta), eps=eps)
    for i in range(6):
        g, before = (1 + i) * randn(5, seed=i), w.detach().clone()
        w.grad = g.clone()
        adam.step()
        told = ahead(own, beta, eps, g, 3 * g)
        counted([own])
        (found,) = directions([own], [float(i + 1)], beta, eps, [g.clone()])
        close(found, before - w.detach(), 1e-12)
        close(told, 3 * found, 1e-12)
    assert float(own["step"]) == 6


def test_parameters_of_different_age_are_scaled_each_by_its_own():
    old, new, g = fresh(3), fresh(3), randn(3)
    counted([old])
    directions([old], [1.0], 0.9, 1e-8, [g])
    counted([old, new])
    # A constant gradient is scaled to its sign at any age.
    for found in directions([old, new], [2.0, 1.0], 0.9, 1e-8, [g, g.clone()]):
        close(found, g.sign(), 1e-6)


def test_what_has_never_had_a_gradient_does_not_move_whatever_eps_is():
    for eps in (0.0, 1e-8):
        own, g = fresh(2), torch.tensor([0.0, 2.0], dtype=F64)
        assert ahead(own, 0.9, eps, g, torch.ones(2, dtype=F64))[0] == 0
        counted([own])
        (found,) = directions([own], [1.0], 0.9, eps, [g])
        assert found.tolist() == pytest.approx([0.0, 1.0])
        assert bool(torch.isfinite(found).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_memory_in_another_order_has_the_same_directions(dtype, eps):
    """The fused kernel reads memory in order, so it must not see tensors whose order differs."""
    owns = [{"step": torch.zeros(()), "exp_avg_sq": torch.zeros(4, 6, dtype=dtype)} for _ in range(3)]
    for t in range(1, 4):
        plain = randn(4, 6, seed=t).to(dtype)
        other, repeated = plain.mT.contiguous().mT, plain[:, :1].expand(4, 6)
        found = []
        for own, g in zip(owns, (plain, other, repeated)):
            counted([own])
            found += directions([own], [float(t)], 0.9, eps, [g])
        tolerance = 1e-6 if dtype is torch.float32 else 1e-13
        close(found[1], found[0], tolerance)
        close(found[2], found[0][:, :1].expand(4, 6), tolerance)
        close(owns[1]["exp_avg_sq"], owns[0]["exp_avg_sq"], tolerance)


def test_gradients_are_left_as_they_are():
    g = randn(5)
    before = g.clone()
    own = fresh(5)
    counted([own])
    directions([own], [1.0], 0.9, 1e-8, [g])
    assert torch.equal(g, before)
