"""Which curvature to step with, by predicted cost: a dense Hessian, a pool's products, or secants around P alone."""

from __future__ import annotations

from dataclasses import dataclass

DENSE, POOL, SECANTS, SGD = "dense Newton", "pool-Newton", "L-BFGS around P", "sgd"
# All the data is the pool up to ALL points, and POOL_POINTS of them beyond; an eighth of a sample is held out.
POOL_POINTS, ALL, HELD_OUT = 8192, 16_384, 8
# Directions of P, and pool points for each at the least: with fewer, building P costs more than it saves.
RANK, POINTS_A_RANK = 128, 32
# Points that a preconditioner is built from, for each direction.
POINTS_A_DIRECTION = {DENSE: 8, POOL: 16, SECANTS: 16}
# Seen on the problems of the bench: passes, and products with the pool in each; a column of a block costs ¾ of a product.
PASSES = {DENSE: 7, POOL: 7, SECANTS: 60}
PRODUCTS = {DENSE: 5, POOL: 25, SECANTS: 0}
COLUMN = 0.75
LARGEST_DENSE = 1000


@dataclass(frozen=True)
class Plan:
    """What to step with, and what each way would cost in points that gradients and products are taken of."""

    method: str
    pool: int  # points, with those held out
    held: int
    rank: int
    costs: dict[str, float]


def planned(size: int, points: int, kept: int, memory: float, itemsize: int) -> Plan:
    """For so many weights and data points, of which so many are kept."""
    pool = points if points <= min(ALL, kept) else min(POOL_POINTS, kept)
    rank = max(1, min(RANK, size, pool // POINTS_A_RANK, int(memory / 8 / (size * itemsize))))
    held = pool // HELD_OUT if pool < points else 0
    costs = {m: _cost(m, size, points, pool, rank) for m in (DENSE, POOL, SECANTS)}
    allowed = dict(costs)
    if size > LARGEST_DENSE or 8 * size**2 > memory / 8:
        del allowed[DENSE]
    if pool < points and size > pool:  # the pool's Hessian has no full rank
        del allowed[POOL]
    else:
        del allowed[SECANTS]
    method = min(allowed, key=lambda m: allowed[m])
    return Plan(method, pool, held, rank, costs)


def build_points(method: str, size: int, pool: int, rank: int) -> int:
    """Points that P is built from: enough for its directions, at most the pool."""
    return min(pool, max(512, POINTS_A_DIRECTION[method] * (size if method == DENSE else rank)))


def _cost(method: str, size: int, points: int, pool: int, rank: int) -> float:
    columns = size if method == DENSE else rank
    build = COLUMN * columns * build_points(method, size, pool, rank)
    return PASSES[method] * (points + PRODUCTS[method] * pool) + build
