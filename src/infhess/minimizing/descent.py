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
from infhess.minimizing.stop_rule import NEAR
from infhess.optim.controllers.step_length import tangents_meet

# A step is also accepted if its slope has shrunk to this, and the loss has risen by at most this many rounding errors.
SHRUNK, ROUNDING = 0.9, 1e3
# The next step is this many times as long as Newton's if the slope has not shrunk to that: far from any curvature.
STRETCH = 4.0
KINK = (
    "the loss has kinks: its slope turns within a step of no length, and curvature does not describe it; smooth it, e.g. with "
    "torch.nn.functional.huber_loss for an absolute error"
)
FLAT = (
    "the loss has no curvature along its gradient at the end, so nothing is known of the gap; is it made of straight pieces, "
    "as an absolute error is? Smooth it, e.g. with torch.nn.functional.huber_loss"
)
EDGE = "the loss is not finite right beside the best point; keep the weights away from there by a penalty, or start elsewhere"
UNSTEADY = (
    "the loss rises where its gradient says that it falls; does it differ when it is computed again, by dropout or random "
    "draws? Call model.eval(), and use double precision"
)


@dataclass(frozen=True)
class Pass:
    """A pass over all the data.

    Attributes:
        point: the point it is at; the one before, if the step that was tried was too long.
        proposal: the step from there; None after a step that was too long.
        alpha: the length of the last step.
        decrement: what the model says there is to gain at the point; infinite if the last step met none of its curvature.
        straight: steps in a row along which the slope did not shrink.
        stuck: why no shorter step is tried; empty as long as one is.

    """

    point: Point
    proposal: Proposal | None
    alpha: float
    decrement: float
    straight: int = 0
    stuck: str = ""


def descend(
    objective: Objective, evaluate: Callable[[], Value], model: Model, start: Tensor,
    count: Callable[[int], None],
) -> Iterator[Pass]:  # fmt: skip
    """w ← w + α·step; a step that raises the loss is shortened, which costs one more pass.

    Ends where no step gains more than rounding. The loss of the first pass may not be finite: the caller has to look.
    """

    def at(w: Tensor) -> Point:
        return Point(objective.put(w), evaluate())

    here, alpha, straight, eps = at(start), math.nan, 0, objective.eps
    while True:
        proposal = model.propose(here)
        yield Pass(here, proposal, alpha, math.inf if straight else proposal.decrement, straight)
        proposal = model.propose(here) if model.grown else proposal
        alpha = STRETCH**straight * step_length(objective, here, proposal, model.held, count)
        now = at(here.w + alpha * proposal.step)
        straight = straight + 1 if accepted(here, now, proposal, eps) and is_straight(here, now, proposal, eps) else 0
        cuts = 0
        while not accepted(here, now, proposal, eps):
            cuts += 1
            tried, alpha = alpha, alpha * shorter(here, now, proposal, alpha, cuts, eps)
            stuck = "" if alpha * -slope(here, proposal) > here.rounding(eps) else _why_stuck(now, proposal)
            yield Pass(here, None, tried, proposal.decrement, 0, stuck)
            if stuck:
                return
            now = at(here.w + alpha * proposal.step)
        model.learn(here, now)
        here = now


def slope(point: Point, proposal: Proposal) -> float:
    """gᵀ·step at a point."""
    return float(point.value.gradient @ proposal.step)


def accepted(before: Point, after: Point, proposal: Proposal, eps: float) -> bool:
    """Accept by value; near the optimum, where the value is rounding, by slope."""
    rise = after.value.loss - before.value.loss
    if not rise <= ROUNDING * eps * abs(before.value.loss):
        return False
    return rise <= 0 or abs(slope(after, proposal)) <= SHRUNK * abs(slope(before, proposal))


def is_straight(before: Point, after: Point, proposal: Proposal, eps: float) -> bool:
    """Whether the loss falls nearly as steeply after the step as before it, beyond rounding."""
    then = slope(before, proposal)
    return slope(after, proposal) < SHRUNK * then < -NEAR * before.rounding(eps)


def shorter(before: Point, after: Point, proposal: Proposal, alpha: float, cuts: int, eps: float) -> float:
    """The share of a step that has raised the loss to try next, at most a half.

    A quarter if the loss is not finite there, and ever less after some cuts: Newton's step may be 10¹⁰⁰ times too long.

    The zero of the slope on a line through both slopes is that of a quadratic, but no less than a tenth, since a loss such as
    Poisson's is far steeper behind its minimum than before it. The tangents at both ends meet where a loss of two straight
    lines has its kink: far from the optimum, where a logistic loss saturates, that may be many orders of magnitude shorter.
    """
    then, now = slope(before, proposal), slope(after, proposal)
    if not after.value.loss < math.inf or not now > 0:
        return 4.0 ** min(-1, 3 - cuts)
    zero = max(-then / (now - then), 0.1)
    kink = tangents_meet(alpha * then, alpha * now, after.value.loss - before.value.loss)
    return max(min(zero, kink, 0.5), ROUNDING * eps)


def _why_stuck(after: Point, proposal: Proposal) -> str:
    if not after.value.loss < math.inf:
        return EDGE
    if slope(after, proposal) > 0:
        return KINK
    return UNSTEADY if proposal.decrement < math.inf else FLAT


def step_length(
    objective: Objective, here: Point, proposal: Proposal, held: list[Batch], count: Callable[[int], None]
) -> float:
    """The zero of the slope along the step, on held-out points, which are counted; 1 if there are none.

    If the pool is all the data, Newton's own step is right, and if not the next pass shows it.
    """
    step, start = proposal.step, slope(here, proposal)
    if not (held and start < 0):
        return 1.0

    def slope_at(alpha: float) -> float:
        objective.put(here.w + alpha * step)
        value = objective.over(held)
        count(value.points)
        return start + float((value.gradient - there.gradient) @ step) if value.loss < math.inf else math.inf

    objective.put(here.w)
    there = objective.over(held)
    count(there.points)
    return zero_of_slope(slope_at, start)
