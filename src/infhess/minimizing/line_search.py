"""The length of a step: the zero of the slope, estimated on held-out points."""

from __future__ import annotations

import math
from collections.abc import Callable

# The longest and the shortest step in units of the Newton step, and the number of trials per search.
LONGEST, SHORTEST, TRIALS = 8.0, 1e-3, 8
# A slope that is smaller than at the start by this factor counts as zero.
FLAT = 0.1


def zero_of_slope(slope: Callable[[float], float], start: float) -> float:
    """α with φ'(α) ≈ 0 for a convex φ with φ'(0) = start < 0, from α = 1: false position with halved ends (Illinois).

    The slope is that of all data at 0 plus its change on held-out points, dᵀ[g(w + αd) − g(w)]: as in SVRG, the noise of
    held-out points shrinks with the step.
    """
    low, high, f_low, f_high = 0.0, math.inf, start, math.nan
    alpha, last = 1.0, 0
    for _ in range(TRIALS):
        f = slope(alpha)
        if abs(f) <= -FLAT * start:
            return _polished(alpha, f, low, f_low)
        if f < 0:
            beyond = alpha + f * (alpha - low) / (f_low - f) if f > f_low else math.inf
            low, f_low, f_high = alpha, f, f_high / 2 if last < 0 else f_high
            last = -1
        else:  # infinity and NaN too: the loss is not defined there
            high, f_high, f_low = alpha, f, f_low / 2 if last > 0 else f_low
            last = 1
        if low >= LONGEST or high <= SHORTEST:
            break
        alpha = _between(low, high, f_low, f_high) if high < math.inf else min(max(beyond, 1.5 * low), 4 * low, LONGEST)
    return min(max(alpha, SHORTEST), LONGEST)


def _between(low: float, high: float, f_low: float, f_high: float) -> float:
    if not abs(f_high) < math.inf:
        return low + (high - low) / 8
    share = f_low / (f_low - f_high)
    return low + (high - low) * min(max(share, 0.05), 0.95)


def _polished(alpha: float, f: float, low: float, f_low: float) -> float:
    """One more step of false position from a known end, at no cost."""
    return alpha if f == f_low else min(max(alpha - f * (alpha - low) / (f - f_low), alpha / 2), 2 * alpha)
