"""When to stop: the gap with its upper bound, and what else ends a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple

from infhess._checks import finite_number
from infhess.minimizing.choice import SECANTS

Row = dict[str, Any]
# Of contraction, beyond which nothing can be extrapolated.
SLOWEST = 0.95
# The level at which a run stops by itself.
LEVEL = 0.95
# Passes without half the gap of the best before, after which there is nothing more to gain: near rounding, and elsewhere.
IDLE, LATE = 4, 20
# Cuts of one step, after which it leads nowhere.
CUTS = 8
# Passes over which the fall of the loss is compared with that over as many before them.
WINDOW = 10
# Rounding of the loss times this is where its gap may be rounding as well.
NEAR = 1e3
# Of the gap of the pass before, in two passes in a row: contraction is slow. Gaps above FAR do not count: there it is the loss,
# far from a quadratic, that slows Newton's method, and not the sample.
SLOW, FAR = 0.3, 0.1


class Gap(NamedTuple):
    """An estimate of L − L*, relative to L₀ − L*, and the standard deviation of its logarithm."""

    value: float
    spread: float

    def upper(self, level: float) -> float:
        """At least the gap with this probability, as calibrated by tests/minimizing/test_calibration.py."""
        level = finite_number(level, "level", least=0.0, strict=True)
        if not level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1, got {level:g}")
        upper = self.value * math.exp(NormalDist().inv_cdf(level) * self.spread)
        return upper if not upper > 1 else 1.0


def relative(decrement: float, loss: float, start: float) -> float:
    """δ / (L₀ − L + δ): the share that is left of what there was to gain; 1 where nothing was gained yet."""
    if decrement == 0:
        return 0.0
    return min(1.0, decrement / max(start - loss + decrement, decrement)) if 0 < decrement < math.inf else 1.0


def extrapolated(decrease: float, before: float, now: float) -> float:
    """What is still to come if the loss goes on falling as it did: decrease · c/(1 − c), c = δ̂/δ̂ of the pass before.

    Newton's own estimate δ̂ is of a quadratic. Where the loss is none, far out or in the tail of a loss that has no minimum,
    δ̂ is too small and shrinks slowly, and this is what tells. Zero where c is no contraction.
    """
    c = now / before if before > 0 else math.inf
    return max(decrease, 0.0) * c / (1 - c) if c < SLOWEST else 0.0


def still_to_come(losses: Sequence[float]) -> float:
    """The same from the loss alone, over many passes: D · c/(1 − c), c = D/D of the passes before, at most SLOWEST."""
    if len(losses) <= 2 * WINDOW:
        return 0.0
    first, middle, last = losses[-2 * WINDOW - 1], losses[-WINDOW - 1], losses[-1]
    c = min((middle - last) / (first - middle), SLOWEST) if first > middle else SLOWEST
    return max(middle - last, 0.0) * c / (1 - c)


def made(rows: Sequence[Row]) -> list[Row]:
    """Passes whose step was accepted."""
    return [r for r in rows if r["phase"] == "newton" and not r["cut"]]


def spread(method: str, whole: bool, left: float, gap: float) -> float:
    """Of log δ̂ around log δ: of the sample, of what the solver left, and of the way that the loss is no quadratic."""
    sample = 1.2 if method == SECANTS else 0.1 if whole else 0.65
    return math.sqrt(sample**2 + min(left, 1.0) + (0.6 if gap > 1e-2 else 0.0) ** 2)


def idle(rows: Sequence[Row], rounding: float) -> bool:
    """Whether the last passes have not halved the best gap before them, or a step was cut again and again.

    Gaps near `rounding` are given up soon, larger ones late, and only where the loss has not fallen by more than that: secants
    alone may take many passes for a half.
    """
    steps = made(rows)
    gaps = [r["gap"] for r in steps]
    if len(rows) >= CUTS and all(r["cut"] for r in rows[-CUTS:]):
        return True
    patience = IDLE if min(gaps, default=1.0) <= rounding else LATE
    if len(gaps) <= patience or min(gaps[-patience:]) <= 0.5 * min(gaps[:-patience]):
        return False
    start, before, now = (steps[i]["loss"] for i in (0, -patience - 1, -1))
    return patience == IDLE or before - now <= rounding * (start - now)


def slow(rows: Sequence[Row]) -> bool:
    """Whether two passes in a row, with the same pool, have left more than a third of the gap each."""
    last = made(rows)[-3:]
    if len(last) < 3 or len({r["pool"] for r in last}) > 1 or last[0]["gap"] > FAR:
        return False
    return all(b["gap"] > SLOW * a["gap"] for a, b in pairwise(last))
