"""Builds of P²: what counts as negative curvature, and what is left where nothing curves upwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from infhess.preconditioners.build import blocked, pooled, read_pool
from util import F64, close, randn


def problem(values, points=8):
    """½ wᵀ diag(values) w + bᵀw over batches of random b, whose gradients point everywhere."""
    w, A = nn.Parameter(randn(len(values))), torch.tensor(values, dtype=F64)
    batches = [randn(points, len(values), seed=i) for i in range(4)]
    return infhess.Hessian(lambda b: 0.5 * A @ w.square() + (b @ w).mean(), [w], batches), batches


BUILDS = {
    "pooled": lambda source, batches, n: pooled(source, batches, n, n, None),
    "blocked": lambda source, batches, n: blocked(source, batches, 1000, n, None, None),
}


# The directions of a pool are not quite orthogonal, which makes no difference.
LOWEST = [(build, *case) for build in BUILDS for case in ((-0.009, False), (-0.011, True))]


@pytest.mark.parametrize(("build", "lowest", "negative"), [*LOWEST, ("blocked", 0.5, False), ("pooled", 0.5, False)])
def test_curvature_is_negative_below_minus_a_hundredth_of_the_largest(build, lowest, negative):
    found = BUILDS[build](*problem([1.0, 0.7, lowest]), 3)
    assert found.negative is negative
    close(found.values[:2], torch.tensor([1.0, 0.7], dtype=F64), 0.02)


@pytest.mark.parametrize("build", BUILDS)
def test_where_nothing_curves_upwards_the_step_alone_is_left(build):
    found = BUILDS[build](*problem([-1.0, -0.7, -0.2]), 3)
    assert (found.negative, found.scaling.directions, len(found.values)) == (True, 0, 0)
    assert "the step alone was measured" in found.notes[0]


@pytest.mark.parametrize(("points", "batches"), [(1, 2), (16, 2), (17, 3), (25, 4)])
def test_a_pool_is_of_so_many_points_and_two_batches_at_the_least(points, batches):
    source, _ = problem([1.0, 2.0])
    assert len(read_pool(source, points)) == batches
    assert source.data_points == 8 * batches
