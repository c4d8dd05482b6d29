"""One step of a Kalman filter for a random walk."""

from __future__ import annotations

import math

from infhess.optim.rate.settings import FILTER


def filtered(mean: float, variance: float, seen: float, drift: float = FILTER.drift) -> tuple[float, float]:
    """Mean and variance after one more reading; the first reading is taken as it is.

    >>> filtered(math.nan, 0.0, 3.0)
    (3.0, 0.2)
    >>> mean, variance = filtered(0.0, 0.18, 1.0)
    >>> round(mean, 6), round(variance, 6)
    (0.5, 0.1)
    """
    if math.isnan(mean):
        return seen, FILTER.noise
    variance += drift
    gain = variance / (variance + FILTER.noise)
    return mean + gain * (seen - mean), variance * (1 - gain)
