"""Which curvature to step with, and how much sgd before it."""

from __future__ import annotations

import pytest

from infhess.minimizing.choice import DENSE, POOL, SECANTS, SGD_STEPS, Facts, build_points, planned, slices_for

GIB = 2**30


@pytest.mark.parametrize(
    ("size", "points", "kept", "matrix", "method", "pool"),
    [
        (31, 569, 569, (1, 31), DENSE, 569),
        (253, 44_484, 44_484, (1, 253), DENSE, 8192),
        (253, 44_484, 4000, (1, 253), DENSE, 4000),  # little memory
        (300, 50_000, 50_000, (1, 300), DENSE, 8192),  # Nyström's P is predicted at a little less, but not at half
        (784, 11_552, 11_552, (1, 784), POOL, 11_552),
        (650, 1797, 1797, (10, 65), POOL, 1797),
        (6012, 20_000, 20_000, (12, 501), SECANTS, 8192),  # a sample of so few points contracts slowly
        (7840, 60_000, 60_000, None, SECANTS, 8192),
        (20_000, 60_000, 60_000, None, SECANTS, 8192),  # the pool's Hessian has no full rank
        (20_000, 10_000, 10_000, None, SECANTS, 10_000),
        (1100, 16_000, 16_000, None, POOL, 16_000),
        (650, 1797, 1400, (10, 65), DENSE, 1400),  # few weights: the gap of a Newton direction is better known
        (650, 1797, 600, (10, 65), SECANTS, 600),  # fewer points than weights: the pool's direction leads nowhere
    ],
)
def test_the_cheapest_method_and_its_pool(size, points, kept, matrix, method, pool):
    plan = planned(Facts(size, points, kept, GIB, 8, matrix))
    assert (plan.method, plan.pool) == (method, pool)
    assert plan.held == (0 if pool == points else pool // 8)
    assert 1 <= build_points(plan.method, size, pool, plan.rank) <= pool
    assert set(plan.costs) == {DENSE, POOL, SECANTS}
    assert (plan.slices > 0) == (method == SECANTS and matrix is not None)


def test_the_rank_keeps_to_the_memory():
    assert planned(Facts(10**6, 10**6, 10**6, 2**26, 4)).rank == 2
    assert planned(Facts(500, 10**6, 10**6, 2**16, 8)).method == POOL  # a dense Hessian would not fit


def test_a_dense_hessian_in_each_pass_where_calls_cost_more_than_numbers():
    assert planned(Facts(31, 569, 569, GIB, 8)).exact
    assert not planned(Facts(31, 569, 569, GIB, 4)).exact  # in single precision rounding needs conjugate gradients
    assert not planned(Facts(500, 10_000, 10_000, GIB, 8)).exact
    assert not planned(Facts(31, 10**6, 10**6, GIB, 8)).exact


def test_sgd_grows_with_what_a_pass_costs():
    steps = [planned(Facts(200, n, n, GIB, 8)).steps for n in (1000, 10_000, 100_000, 10**6, 10**7)]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, SGD_STEPS[1])
    assert all(s == 0 or s >= SGD_STEPS[0] for s in steps)


@pytest.mark.parametrize(
    ("matrix", "pool", "slices"),
    [((12, 501), 8192, 334), ((501, 12), 8192, 334), ((10, 10), 8192, 64), ((12, 501), 400, 0), ((1, 500), 8192, 0)],
)
def test_slices_tell_both_factors(matrix, pool, slices):
    assert slices_for(matrix, pool) == slices
