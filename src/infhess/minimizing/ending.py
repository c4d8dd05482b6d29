"""Why a run ends: the word for `stopped`, and a note that names the cause and the remedy where the gap is not reached."""

from __future__ import annotations

import math

from infhess.minimizing.descent import FLAT, Pass
from infhess.minimizing.stop_rule import LATE, LEVEL, NEAR, WINDOW, Gap, Row, idle

# A loss is said to fall without bound once it is below −|L₀|, after this many steps in a row along which it kept its slope:
# each is four times as long as the one before, so that the last is a million times the first. Fewer do once it is DEEP times
# as far below zero as it was above: then curvature was zero to rounding, and the first step was as long as that allows.
STRAIGHT, FEW_STRAIGHT, DEEP = 10, 3, 1e9
NOT_CONVEX = "not convex: negative curvature was seen on the pool"
UNBOUNDED = (
    "the loss falls without bound: it kept its slope along steps that grew fourfold each time, far below its start, so it has "
    "no minimum; look for a wrong sign or a missing term, or add L2"
)
IDLE = (
    f"the gap has not halved in {LATE} passes, and rounding is not the reason; features of very different scales have this "
    "effect: standardise them, or start from zero weights"
)
BENT = (
    "passes ran out, and most of the last ones found that the loss bends within a small part of the step: it has kinks, which "
    "curvature does not describe (smooth it, e.g. with torch.nn.functional.huber_loss for an absolute error), or the features "
    "have very different scales (standardise them)"
)


def why(
    found: Pass, rows: list[Row], gap: Gap, target: float, loss: float, start_loss: float, eps: float, rounding: float
) -> tuple[str, str]:
    """Why the run ends with this pass, and a note, which may be empty; "passes" if it goes on.

    `loss` and `gap` are those of the best point. Rounding is the reason for an end only where the model has no more to gain
    than rounding makes of the loss.
    """
    if found.proposal is not None and found.proposal.negative:
        return NOT_CONVEX, ""
    if gap.upper(LEVEL) <= target:
        return "gap", ""
    if _is_unbounded(found.straight, loss, abs(start_loss)):
        return "unbounded", UNBOUNDED
    if not (found.stuck or idle(rows, rounding)):
        return "passes", ""
    if found.decrement <= NEAR * found.point.rounding(eps):
        return "precision", ""
    return "stalled", found.stuck or IDLE


def _is_unbounded(straight: int, loss: float, start: float) -> bool:
    deep = 0 < DEEP * start < -loss
    return loss < -start and straight >= (FEW_STRAIGHT if deep else STRAIGHT)


def unfinished(found: Pass, rows: list[Row]) -> str:
    """A note where passes ran out before the gap was reached; empty if the loss is one that more passes would do for."""
    last = [r["cut"] for r in rows if r["phase"] == "newton"][-WINDOW:]
    if len(last) == WINDOW and sum(last) > WINDOW / 2:
        return BENT
    return FLAT if math.isinf(found.decrement) else ""
