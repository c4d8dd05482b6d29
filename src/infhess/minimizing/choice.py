"""Choose a method by predicted cost: a dense Hessian, products of a pool, or L-BFGS around P; and how much SGD comes first."""

from __future__ import annotations

import math
from dataclasses import dataclass

DENSE, POOL, SECANTS, SGD = "dense Newton", "pool-Newton", "L-BFGS around P", "sgd"
# Up to ALL points the pool is all the data, beyond that POOL_POINTS of them; an eighth of a sample is held out.
POOL_POINTS, ALL, HELD_OUT = 8192, 16_384, 8
# Directions of P, and least pool points per direction: with fewer, building P costs more than it saves.
RANK, POINTS_A_RANK = 128, 32
# Points that a preconditioner is built from, per direction or slice.
POINTS_A_DIRECTION = {DENSE: 8, POOL: 16, SECANTS: 16}
# Up to this many weights a Newton direction is affordable, and its gap is better known than that of L-BFGS: use a Newton
# method if all the data is kept, or this many points per weight: smaller pools say too little about the flattest directions.
LARGEST_DENSE, POINTS_A_WEIGHT = 1000, 2
# A factored P: numbers in the gradients of slices per number in the larger factor, and bounds on slices and factors.
NUMBERS, SLICES, LARGEST_FACTOR, SMALLEST_FACTOR = 8, (64, 1024), 4096, 4

# Costs are in multiply-adds: a point costs as many as there are weights; CALL is the overhead of PyTorch and Python per call.
# A column of a block costs ¾ of a product; the points of a chunk are one call.
CALL, COLUMN, CHUNK = 1e5, 0.75, 4096
# Measured on the benchmark problems: passes of Newton's method to 1e-8, and products per pass, which for Nyström's P grow with
# weights per direction. Then passes of L-BFGS around Nyström's P, and around a factored one.
PASSES, PRODUCTS, PRODUCTS_A_WEIGHT = 8, {DENSE: 5, POOL: 8}, 1.3
SECANT_PASSES, SECANT_PASSES_FACTORED = 120, 80
# Products around Nyström's P grow with the condition number, which is unknown in advance (250 per pass if it is 1e10); those
# around a dense Hessian do not. So pool-Newton is chosen only if its predicted cost is half that of dense Newton.
CAUTION = 2.0
# ln 1e8: if a sample's Hessian contracts the gap by N/pool per pass, the number of passes is this over ln(pool/N). The
# contraction is taken as at least 1/1.2: a pool grows if that is slow.
DIGITS, LEAST = 18.4, 1.2
# A step of SGD costs sixteen calls and eight gradients of its batch; all of them save about two passes, a few save nothing.
SGD_BATCH, SGD_CALLS, SGD_GRADIENTS, SAVED = 64, 16, 8, 2
SGD_STEPS = (32, 300)


@dataclass(frozen=True)
class Facts:
    """A problem: its weights, points, points kept, memory, bytes per number, and the matrix shape of the weights, if any.

    `pool` sets the number of points in the pool; without it the rule decides.
    """

    size: int
    points: int
    kept: int
    memory: float
    itemsize: int
    matrix: tuple[int, int] | None = None
    pool: int | None = None


@dataclass(frozen=True)
class Plan:
    """The chosen method, and the cost of each method in passes over the data: a gradient over all the data is one pass.

    Attributes:
        pool, held: points of the pool, and how many of them are held out for the step length.
        rank, slices: directions of P; and, if above zero, the slices whose gradients build a factored P.
        exact: whether the dense Hessian of the whole pool is computed in each pass.
        steps: SGD steps before the first full gradient.

    """

    method: str
    pool: int
    held: int
    rank: int
    slices: int
    exact: bool
    steps: int
    costs: dict[str, float]


def planned(facts: Facts) -> Plan:
    """The cheapest method that fits into memory."""
    size, points, kept, memory = facts.size, facts.points, facts.kept, facts.memory
    pool = facts.pool or (points if points <= min(ALL, kept) else min(POOL_POINTS, kept))
    rank = max(1, min(RANK, size, pool // POINTS_A_RANK, int(memory / 8 / (size * facts.itemsize))))
    held = pool // HELD_OUT if pool < points else 0
    prices = Prices(size, points, pool, rank, slices_for(facts.matrix, pool), facts.itemsize == 8)
    allowed = ways(facts)
    costs = {m: prices.whole(m) / prices.call(points) for m in (DENSE, POOL, SECANTS)}
    method = min(allowed, key=lambda m: costs[m] * (CAUTION if m == POOL and DENSE in allowed else 1))
    slices = prices.slices if method == SECANTS else 0
    return Plan(method, pool, held, rank, slices, method == DENSE and prices.exact, prices.steps(method), costs)


def ways(facts: Facts) -> list[str]:
    """The applicable methods."""
    small = facts.size <= LARGEST_DENSE
    newton = [DENSE, POOL] if small and 8 * facts.size**2 <= facts.memory / 8 else [POOL]
    known = facts.kept >= min(facts.points, POINTS_A_WEIGHT * facts.size)
    return newton if small and known else [POOL, SECANTS]


def slices_for(matrix: tuple[int, int] | None, pool: int) -> int:
    """How many slices both factors need; 0 if the weights do not form a matrix, or the pool is too small."""
    if matrix is None or min(matrix) < SMALLEST_FACTOR or max(matrix) > LARGEST_FACTOR:
        return 0
    least, most = SLICES
    wanted = max(least, -(-NUMBERS * max(matrix) // min(matrix)))
    return wanted if wanted <= min(most, pool // 4) else 0


def build_points(method: str, size: int, pool: int, rank: int) -> int:
    """Points that P is built from: enough for its directions or slices, at most the pool."""
    return min(pool, max(512, POINTS_A_DIRECTION[method] * (size if method == DENSE else rank)))


@dataclass(frozen=True)
class Prices:
    """Predicted costs, in multiply-adds."""

    size: int
    points: int
    pool: int
    rank: int
    slices: int
    double: bool

    def call(self, points: int) -> float:
        """Cost of a gradient or of a product."""
        return points * self.size + CALL * -(-points // CHUNK)

    def block(self, columns: int, points: int) -> float:
        """Cost of products with several columns at once."""
        return COLUMN * columns * points * self.size + CALL * (1 + columns / 16)

    def build(self, method: str) -> float:
        """Cost of building P once."""
        if method == DENSE:
            return self.block(self.size, build_points(DENSE, self.size, self.pool, self.rank))
        if self.slices and method == SECANTS:
            return self.slices * CALL + self.call(build_points(method, self.size, self.pool, self.slices))
        return self.block(self.rank, build_points(method, self.size, self.pool, self.rank)) + self.rank * CALL

    @property
    def exact(self) -> bool:
        """Whether a dense Hessian in each pass costs less than conjugate gradients around an older one; in double precision."""
        return self.double and self.pool == self.points and self.block(self.size, self.pool) < self.conjugate(DENSE)

    def conjugate(self, method: str) -> float:
        """Cost of conjugate gradients on the pool, including their own vector operations."""
        products = (
            PRODUCTS[method] if method == DENSE else max(PRODUCTS[POOL], PRODUCTS_A_WEIGHT * self.size / self.rank)
        )
        return products * (self.call(self.pool) + CALL / 2)

    def a_pass(self, method: str) -> float:
        """Cost of a full gradient and of the direction."""
        if method == SECANTS:
            return self.call(self.points) + 5 * CALL
        exact = method == DENSE and self.exact
        return self.call(self.points) + (self.block(self.size, self.pool) if exact else self.conjugate(method))

    def passes(self, method: str) -> float:
        """Passes to a gap of 1e-8."""
        if method == SECANTS:
            return SECANT_PASSES_FACTORED if self.slices else SECANT_PASSES
        if self.pool == self.points:
            return PASSES
        return max(PASSES, DIGITS / math.log(max(self.pool / self.size, LEAST)))

    def whole(self, method: str) -> float:
        """Cost of the whole run."""
        return self.passes(method) * self.a_pass(method) + self.build(method)

    def steps(self, method: str) -> int:
        """Number of SGD steps: as many as save what they cost, or none if that is few."""
        least, most = SGD_STEPS
        step = SGD_CALLS * CALL + SGD_GRADIENTS * SGD_BATCH * self.size
        steps = int(min(most, SAVED * self.a_pass(method) / step))
        return steps if steps >= least else 0
