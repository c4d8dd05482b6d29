"""Directions: Newton's method on a pool, corrected by secants of the full gradient, or L-BFGS around P without a pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.minimizing.choice import DENSE, Plan, build_points
from infhess.minimizing.conjugate import Solved, conjugate_gradients
from infhess.minimizing.factored import factored_inverse
from infhess.minimizing.objective import Value
from infhess.minimizing.pool_curvature import Inverse, PoolCurvature, dense_inverse, nystrom_inverse
from infhess.minimizing.reservoir import Reservoir
from infhess.minimizing.secants import Secant, two_loops, usable

# Share of the gap that conjugate gradients may leave, and their largest number of iterations.
TOLERANCE, MOST = 0.05, 250
# Iterations after which P is rebuilt: few if that is cheap.
SLOW, SLOW_NYSTROM = 12, 30
# Secants kept: of what a pool misses, or of everything if there is no pool.
MISSED, ALL_SECANTS = 10, 20
# A pool grows by this factor.
GROWTH = 4
# With fewer held-out points than this, the step that L-BFGS proposes is better than the one they find.
FEWEST = 256


class Point(NamedTuple):
    """Weights, with loss and gradient over all the data there."""

    w: Tensor
    value: Value

    def rounding(self, eps: float) -> float:
        """How far the loss may be off because it and the weights are rounded: ε (|L| + Σ |gᵢ wᵢ|)."""
        return eps * (abs(self.value.loss) + float((self.value.gradient * self.w).abs().sum()))


@dataclass(frozen=True)
class Proposal:
    """A step to try, the model's ½ gᵀH⁻¹g, what the solver left of it, and whether curvature was negative."""

    step: Tensor
    decrement: float
    left: float
    iterations: int
    negative: bool


class Kept:
    """The kept data, and how P is built from it.

    Args:
        graph: bytes of the graph per point.
        memory: bytes for graphs.

    """

    def __init__(
        self, source: Hessian, plan: Plan, reservoir: Reservoir, graph: float, memory: float, wide: torch.dtype
    ) -> None:
        self.source, self.plan, self.reservoir, self.wide = source, plan, reservoir, wide
        self.most = memory / max(graph, 1.0)  # points whose graphs may be kept

    def curvature(self, chunks: list[Batch]) -> PoolCurvature:
        """The curvature of these chunks at the present parameters."""
        return PoolCurvature(self.source, chunks, self.most, self.wide)

    def inverse(self, first: int, pool: int) -> Inverse:
        """P² from points of the pool that are not held out."""
        plan, source = self.plan, self.source
        points = min(pool - first, build_points(plan.method, source.size, pool, plan.slices or plan.rank))
        chunks = self.reservoir.between(first, first + points)
        if plan.method == DENSE:
            return dense_inverse(self.curvature(chunks))
        if plan.slices:
            (batch,) = self.reservoir.shuffled(first, first + points)
            return factored_inverse(source, batch, plan.slices, self.curvature(chunks))
        return nystrom_inverse(source, chunks, plan.rank, self.wide)


def nothing_left(here: Point) -> Proposal:
    """The proposal where the gradient is zero."""
    return Proposal(torch.zeros_like(here.w), 0.0, 0.0, 0, False)


def proposed(g: Tensor, d: Tensor, found: Solved, negative: bool) -> Proposal:
    """−d if it is a descent direction, else −g; the gap is unknown if no curvature was seen at all."""
    slope, negative = float(g @ d), negative or found.negative
    if not slope > 0:
        return Proposal(-g, math.inf, 1.0, found.iterations, negative)
    flat = found.left == 1.0 and found.iterations == 1
    return Proposal(-d, math.inf if flat else slope / 2, found.left, found.iterations, negative)


class PoolNewton:
    """−H⁻¹g: preconditioned conjugate gradients on the pool's Hessian, corrected by y = H s + (Δg − Δg of the pool).

    Attributes:
        grown: whether the pool has grown since the last proposal.
        points, whole: points of the pool, including those held out, and whether that is all the data.
        held: points on which the step length is found; none if the pool is all the data.

    """

    def __init__(self, kept: Kept) -> None:
        self.kept, self.plan, self.reservoir = kept, kept.plan, kept.reservoir
        self._secants: list[Secant] = []
        self._gradient: Tensor | None = None  # the pool's, at the last point
        self._curvature: PoolCurvature | None = None  # at the present point, if the gradient was computed with it
        self._inverse: Inverse | None = None
        self._slow = self.grown = False
        self._take(self.plan.pool)

    def _take(self, points: int) -> None:
        self.points, self.whole = points, points >= self.reservoir.points
        self._inverse = self._curvature = None
        self._first = 0 if self.whole else self.plan.held
        self.held = self.reservoir.between(0, self._first) if self._first else []
        self._chunks = self.reservoir.between(self._first, points)

    def grow(self) -> bool:
        """Add kept points to the pool, if there are more; secants of what the smaller pool missed are dropped."""
        if self.points >= self.reservoir.kept:
            return False
        self._secants, self._gradient, self.grown = [], None, True
        self._take(min(GROWTH * self.points, self.reservoir.kept))
        return True

    def evaluate(self) -> Value | None:
        """Loss and gradient over all the data, if that is the pool: the graph then also serves for products."""
        kept = self.kept
        if not (self.whole and self.points <= kept.most and kept.source.kind == "exact"):
            return None
        try:
            self._curvature = curvature = kept.curvature(self._chunks)
        except ValueError:  # the loss is not finite here
            return Value(math.inf, torch.zeros(kept.source.size, dtype=kept.wide), self.points)
        finite = bool(torch.isfinite(curvature.gradient).all())
        return Value(curvature.loss if finite else math.inf, curvature.gradient, self.points)

    def propose(self, here: Point) -> Proposal:
        """The step at this point, which is that of the parameters."""
        g = here.value.gradient
        if not bool(g.any()):
            return nothing_left(here)
        self.grown = False
        curvature = self._curvature or self.kept.curvature(self._chunks)
        self._curvature = None
        return self._exact(g, curvature) if self.plan.exact else self._conjugate(g, curvature)

    def _exact(self, g: Tensor, curvature: PoolCurvature) -> Proposal:
        """The step with the dense Hessian at the present point."""
        found = dense_inverse(curvature)
        flat = (1.0, 1) if found.flat else (0.0, 0)
        return proposed(g, found.apply(g), Solved(g, *flat, found.negative), found.negative)

    def _conjugate(self, g: Tensor, curvature: PoolCurvature) -> Proposal:
        if self._inverse is None or self._slow:
            self._inverse = self.kept.inverse(self._first, self.points)
        self._complete(curvature)
        P2, solved = self._inverse, []

        def inverse(q: Tensor) -> Tensor:
            solved.append(conjugate_gradients(curvature.product, q, P2.apply, TOLERANCE, MOST))
            return solved[-1].x

        d = two_loops(self._pairs(curvature), g, inverse)
        cheap = self.plan.method == DENSE or self.plan.slices
        self._slow = solved[0].iterations > (SLOW if cheap else SLOW_NYSTROM)
        self._gradient = None if self.whole else curvature.gradient
        return proposed(g, d, solved[0], P2.negative)

    def _complete(self, curvature: PoolCurvature) -> None:
        """Subtract the pool's gradient here from the newest secant, to which that of the last point was added."""
        if self._gradient is not None and self._secants:
            s, change = self._secants[-1]
            self._secants[-1] = Secant(s, change - curvature.gradient)

    def learn(self, before: Point, after: Point) -> None:
        """Record a secant of what the pool misses: the change of the full gradient minus that of the pool's."""
        if self._gradient is not None:  # the pool's gradient at the new point comes with its curvature
            change = after.value.gradient - before.value.gradient + self._gradient
            self._secants = [*self._secants, Secant(after.w - before.w, change)][-MISSED:]

    def _pairs(self, curvature: PoolCurvature) -> list[tuple[Tensor, Tensor]]:
        if not self._secants:
            return []
        S = torch.stack([secant.s for secant in self._secants], 1)
        lengths = torch.linalg.vector_norm(S, dim=0)
        Y = curvature.block(S / lengths)
        changes = [secant.change / n for secant, n in zip(self._secants, lengths)]
        return usable([(s, y + c) for s, y, c in zip((S / lengths).unbind(1), Y.unbind(1), changes)])


class AroundP:
    """L-BFGS with P², built once from a part of the pool, as its initial inverse: no products in a pass."""

    def __init__(self, kept: Kept) -> None:
        self.kept, self.plan, self.points, self.whole = kept, kept.plan, kept.plan.pool, False
        self.held: list[Batch] = kept.reservoir.between(0, kept.plan.held) if kept.plan.held >= FEWEST else []
        self.grown = False
        self._inverse: Inverse | None = None
        self._pairs: list[tuple[Tensor, Tensor]] = []

    def evaluate(self) -> None:
        """None: there is no graph that could serve for products."""

    def propose(self, here: Point) -> Proposal:
        """The step at this point, which is that of the parameters."""
        if not bool(here.value.gradient.any()):
            return nothing_left(here)
        if self._inverse is None:
            self._inverse = self.kept.inverse(self.plan.held, self.points)
        pairs, P2 = usable(self._pairs), self._inverse.apply
        scale = 1.0
        if pairs:
            s, y = pairs[-1]
            scale = float(s @ y) / float(y @ P2(y))
        d = two_loops(pairs, here.value.gradient, lambda q: scale * P2(q))
        return Proposal(-d, float(here.value.gradient @ d) / 2, 1.0, 0, self._inverse.negative)

    def grow(self) -> bool:
        """Nothing can grow: there is no pool."""
        return False

    def learn(self, before: Point, after: Point) -> None:
        """Record a secant of the full gradient."""
        pair = (after.w - before.w, after.value.gradient - before.value.gradient)
        self._pairs = [*self._pairs, pair][-ALL_SECANTS:]


Model = PoolNewton | AroundP
