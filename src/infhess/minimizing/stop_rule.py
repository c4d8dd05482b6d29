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
# Contraction factor above which nothing can be extrapolated.
SLOWEST = 0.95
# The confidence level at which a run stops by itself.
LEVEL = 0.95
# Passes that fail to halve the best gap before them, after which a run is idle: near rounding, and elsewhere.
IDLE, LATE = 4, 20
# Passes over which the fall of the loss is compared with that over as many before.
WINDOW = 10
# Below this many times the rounding of the loss, the gap may be rounding too.
NEAR = 1e3
# Contraction is slow if two passes in a row leave more than this share of the gap. Gaps above FAR do not count: there
# Newton's method is slow because the loss is far from a quadratic, not because of the sample.
SLOW, FAR = 0.3, 0.1


class Gap(NamedTuple):
    """An estimate of L − L*, relative to L₀ − L*, and the standard deviation of its logarithm."""

    value: float
    spread: float

    def upper(self, level: float) -> float:
        """An upper bound on the gap with this probability, calibrated in tests/minimizing/test_calibration.py."""
        level = finite_number(level, "level", least=0.0, strict=True)
        if not level < 1:
            raise ValueError(f"level: expected a probability between 0 and 1, got {level:g}")
        upper = self.value * math.exp(NormalDist().inv_cdf(level) * self.spread)
        return upper if not upper > 1 else 1.0


def relative(decrement: float, loss: float, start: float) -> float:
    """δ / (L₀ − L + δ): the share of the possible gain that is left; 1 if nothing was gained yet."""
    if decrement == 0:
        return 0.0
    return min(1.0, decrement / max(start - loss + decrement, decrement)) if 0 < decrement < math.inf else 1.0


def extrapolated(decrease: float, before: float, now: float) -> float:
    """The remaining decrease if the loss continues to fall as it did: decrease · c/(1 − c), c = δ̂/δ̂ of the pass before.

    Newton's own estimate δ̂ assumes a quadratic. Otherwise, far from the optimum or in the tail of a loss without a minimum,
    δ̂ is too small and shrinks slowly, and this estimate is larger. Zero if c is not a contraction.
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
    """Rows of passes whose step was accepted."""
    return [r for r in rows if r["phase"] == "newton" and not r["cut"]]


def spread(method: str, whole: bool, left: float, gap: float) -> float:
    """The spread of log δ̂ around log δ: due to the sample, to what the solver left, and to the loss not being quadratic."""
    sample = 1.2 if method == SECANTS else 0.1 if whole else 0.65
    return math.sqrt(sample**2 + min(left, 1.0) + (0.6 if gap > 1e-2 else 0.0) ** 2)


def idle(rows: Sequence[Row], rounding: float) -> bool:
    """Whether the last passes did not halve the best gap before them.

    Near `rounding` a run gives up soon; at larger gaps late, and only if the loss has not fallen by more than `rounding`:
    with secants alone it may take many passes to halve the gap.
    """
    steps = made(rows)
    gaps = [r["gap"] for r in steps]
    patience = IDLE if min(gaps, default=1.0) <= rounding else LATE
    if len(gaps) <= patience or min(gaps[-patience:]) <= 0.5 * min(gaps[:-patience]):
        return False
    start, before, now = (steps[i]["loss"] for i in (0, -patience - 1, -1))
    return patience == IDLE or before - now <= rounding * (start - now)


def slow(rows: Sequence[Row]) -> bool:
    """Whether each of the last two passes, with the same pool, has left more than SLOW of the gap."""
    last = made(rows)[-3:]
    if len(last) < 3 or len({r["pool"] for r in last}) > 1 or last[0]["gap"] > FAR:
        return False
    return all(b["gap"] > SLOW * a["gap"] for a, b in pairwise(last))
