"""Adam's scaling: against torch's own, ahead of a step and in it, and where there has never been a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from infhess.optim.scalings.diagonal import DiagonalScaling, directions
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
        (found,), factor = directions([own], [float(i)], beta, eps, [g.clone()])
        found *= factor
        close(found, before - w.detach(), 1e-12)
        close(told, 3 * found, 1e-12)
    assert float(own["step"]) == 6


def test_parameters_of_different_age_are_scaled_each_by_its_own():
    old, new, g = fresh(3), fresh(3), randn(3)
    directions([old], [0.0], 0.9, 1e-8, [g])
    (first, second), factor = directions([old, new], [1.0, 0.0], 0.9, 1e-8, [g, g.clone()])
    # A constant gradient is scaled to its sign at any age.
    close(factor * first, g.sign(), 1e-6)
    close(factor * second, g.sign(), 1e-6)


def test_what_has_never_had_a_gradient_does_not_move_whatever_eps_is():
    for eps in (0.0, 1e-8):
        own, g = fresh(2), torch.tensor([0.0, 2.0], dtype=F64)
        assert ahead(own, 0.9, eps, g, torch.ones(2, dtype=F64))[0] == 0
        (found,), factor = directions([own], [0.0], 0.9, eps, [g])
        found *= factor
        assert found.tolist() == pytest.approx([0.0, 1.0])
        assert bool(torch.isfinite(found).all())
