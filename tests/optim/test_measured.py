"""A measured step: the mean over fresh batches, and the bounds where the loss is not convex."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import infhess
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.updates import measured_step
from infhess.preconditioners.scaling import identity
from util import F64, randn


def problem(curvatures, points):
    """½ c |w|² with c by batch, of so many points, and w of length 2."""
    w = nn.Parameter(2 * nn.functional.normalize(randn(5), dim=0))
    batches = [torch.full((points,), float(c), dtype=F64) for c in curvatures]
    return infhess.Hessian(lambda b: 0.5 * b.mean() * w.square().sum(), [w], batches), w.detach()


def step_of(source, w, state=None, decay=0.0):
    return measured_step(source, identity([5], source.like), state or ControllerState(), w, decay)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_it_is_the_inverse_of_the_mean_over_four_fresh_batches(decay):
    source, w = problem([6, 1, 2, 3, 100], 32)
    found = step_of(source, w, decay=decay)
    assert found.rate == pytest.approx(1 / (3 + decay))
    assert found.limit == pytest.approx(3 * found.rate * 6 * 2)  # three times the longest of the four
    assert (source.data_points, found.notes) == (4 * 32, ())


@pytest.mark.parametrize(("points", "batches"), [(31, 4), (10, 4), (4, 8), (1, 32)])
def test_small_batches_are_taken_until_there_are_32_points_and_weighted_by_themselves(points, batches):
    curvatures = range(40, 0, -1)  # the last is low, and so the rate holds there
    source, w = problem(curvatures, points)
    seen = list(curvatures)[:batches]
    assert step_of(source, w).rate == pytest.approx(sum(seen) / sum(c**2 for c in seen))
    assert source.data_points == points * batches


def test_batches_that_tell_nothing_are_left_out_and_48_are_the_most():
    source, w = problem([0, 6, 0, 1, 2, 3, 100], 32)
    assert step_of(source, w).rate == pytest.approx(1 / 3)
    source, w = problem([0] * 100, 32)
    with pytest.raises(ValueError, match="gradient other than zero"):
        step_of(source, w)
    assert source.data_points == 48 * 32


@pytest.mark.parametrize(
    ("state", "most"),
    [
        (ControllerState(), 0.01 * 2 / 8),  # a first step moves w by a hundredth
        (ControllerState(active=1.0, step=1e-3, factor=2.0), 4 * 2e-3),  # then it grows fourfold at the most
        (ControllerState(active=1.0, step=10.0), 1 / 4),  # up to what curvature allows for
    ],
)
def test_without_convexity_steps_are_bounded(state, most):
    source, w = problem([-4] * 4, 32)
    found = step_of(source, w, state)
    assert state.nonconvex == 1
    assert found.rate == pytest.approx(most)
    assert found.limit == pytest.approx(0.03 * 2)
    assert len(found.notes) == (1 if most == 1 / 4 else 2)
    assert "3 % of |w|" in found.notes[0]


def test_weights_of_zero_bound_nothing():
    w = nn.Parameter(torch.zeros(5, dtype=F64))
    batches = [torch.full((32,), -4.0, dtype=F64)] * 4
    source = infhess.Hessian(lambda b: 0.5 * b.mean() * (w - 1).square().sum(), [w], batches)
    found = step_of(source, w.detach())
    assert (found.rate, found.limit) == (pytest.approx(1 / 4), math.inf)
