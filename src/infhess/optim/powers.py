"""Steps that come ever more rarely."""

from __future__ import annotations


def power_of_two(steps: float) -> bool:
    """Whether this is 1, 2, 4, 8, …; NaN is not."""
    whole = int(steps) if steps == steps else 0
    return whole > 0 and whole & (whole - 1) == 0


def power_of_four(steps: float) -> bool:
    """Whether this is 1, 4, 16, 64, …; NaN is not."""
    return power_of_two(steps) and int(steps).bit_length() % 2 == 1
