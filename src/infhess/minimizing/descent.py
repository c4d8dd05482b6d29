"""The passes after the first: full gradient, direction, step length, as a generator of the results of each pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from infhess.curvature.batches import Batch
from infhess.minimizing.line_search import zero_of_slope
from infhess.minimizing.newton import Model, Point, Proposal
from infhess.minimizing.objective import Objective, Value

# A step is also accepted if its slope has shrunk to this, and the loss has risen by at most this many rounding errors.
SHRUNK, ROUNDING = 0.9, 1e3


@dataclass(frozen=True)
class Pass:
    """A pass over all the data: its point, its proposal (None: the step before was too long), and the last step."""

    point: Point
    proposal: Proposal | None
    alpha: float


def descend(
    objective: Objective, evaluate: Callable[[], Value], model: Model, start: Tensor,
    count: Callable[[int], None],
) -> Iterator[Pass]:  # fmt: skip
    """w ← w + α·step, endlessly; a step that raises the loss is shortened, which costs one more pass."""

    def at(w: Tensor) -> Point:
        return Point(objective.put(w), evaluate())

    here, alpha = at(start), math.nan
    if not here.value.loss < math.inf:
        raise ValueError("loss: expected a finite number over all the data, got NaN or infinity; is a batch at fault?")
    while True:
        proposal = model.propose(here)
        yield Pass(here, proposal, alpha)
        proposal = model.propose(here) if model.grown else proposal
        alpha = step_length(objective, here, proposal, model.held, count)
        now = at(here.w + alpha * proposal.step)
        while not accepted(here, now, proposal, objective.eps):
            yield Pass(here, None, alpha)
            alpha = shorter(here, now, proposal, alpha, objective.eps)
            if not alpha * abs(float(here.value.gradient @ proposal.step)) > objective.eps * abs(here.value.loss):
                return  # no shorter step can gain more than rounding
            now = at(here.w + alpha * proposal.step)
        model.learn(here, now)
        here = now


def accepted(before: Point, after: Point, proposal: Proposal, eps: float) -> bool:
    """Accept by value; near the optimum, where the value is rounding, by slope."""
    rise = after.value.loss - before.value.loss
    if not rise <= ROUNDING * eps * abs(before.value.loss):
        return False
    then, now = (float(p.value.gradient @ proposal.step) for p in (before, after))
    return rise <= 0 or abs(now) <= SHRUNK * abs(then)


def shorter(before: Point, after: Point, proposal: Proposal, alpha: float, eps: float) -> float:
    """The next length to try after one that raised the loss: where the minimum of a quadratic or of two lines would be.

    A quadratic through both slopes has its minimum where the slope is zero. Two straight lines, the tangents at both ends, meet
    at their kink; far from the optimum a saturated loss consists of them, and its step may be too long by many orders of
    magnitude. The smaller of both, at most half of the step; a quarter if the loss is not finite.
    """
    then, now = (float(p.value.gradient @ proposal.step) for p in (before, after))
    if not after.value.loss < math.inf or not now > 0:
        return alpha / 4
    rise = after.value.loss - before.value.loss
    zero, kink = -then * alpha / (now - then), (now * alpha - rise) / (now - then)
    return max(min(max(zero, alpha / 10), kink, alpha / 2), ROUNDING * eps * alpha)


def step_length(
    objective: Objective, here: Point, proposal: Proposal, held: list[Batch], count: Callable[[int], None]
) -> float:
    """The zero of the slope along the step, on held-out points, which are counted; 1 if there are none.

    If the pool is all the data, Newton's own step is right, and if not the next pass shows it.
    """
    step, start = proposal.step, float(here.value.gradient @ proposal.step)
    if not (held and start < 0):
        return 1.0

    def slope(alpha: float) -> float:
        objective.put(here.w + alpha * step)
        value = objective.over(held)
        count(value.points)
        return start + float((value.gradient - there.gradient) @ step) if value.loss < math.inf else math.inf

    objective.put(here.w)
    there = objective.over(held)
    count(there.points)
    return zero_of_slope(slope, start)
