"""Which curvature to step with."""

from __future__ import annotations

import pytest

from infhess.minimizing.choice import DENSE, POOL, SECANTS, build_points, planned

GIB = 2**30


@pytest.mark.parametrize(
    ("size", "points", "kept", "method", "pool"),
    [
        (31, 569, 569, DENSE, 569),
        (253, 44_484, 44_484, DENSE, 8192),
        (253, 44_484, 4000, DENSE, 4000),  # little memory
        (784, 11_552, 11_552, POOL, 11_552),
        (6012, 20_000, 20_000, POOL, 8192),
        (20_000, 60_000, 60_000, SECANTS, 8192),  # the pool's Hessian has no full rank
        (20_000, 10_000, 10_000, POOL, 10_000),  # nor has that of all the data: there is nothing else
    ],
)
def test_the_method_and_its_pool(size, points, kept, method, pool):
    plan = planned(size, points, kept, GIB, 8)
    assert (plan.method, plan.pool) == (method, pool)
    assert plan.held == (0 if pool == points else pool // 8)
    assert 1 <= build_points(plan.method, size, pool, plan.rank) <= pool
    assert set(plan.costs) == {DENSE, POOL, SECANTS}


def test_the_rank_keeps_to_the_memory():
    assert planned(10**6, 10**6, 10**6, 2**26, 4).rank == 2
    assert planned(500, 10**6, 10**6, 2**16, 8).method == POOL  # a dense Hessian would not fit
