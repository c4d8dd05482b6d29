"""What the full gradient has shown along past steps: secants, and the two loops of L-BFGS around any inverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor


class Secant(NamedTuple):
    """A step s, and what it changed: the full gradient, less the pool's own change where there is a pool."""

    s: Tensor
    change: Tensor


def two_loops(pairs: Sequence[tuple[Tensor, Tensor]], g: Tensor, inverse: Callable[[Tensor], Tensor]) -> Tensor:
    """H g, H the inverse with all y = B s (oldest first) put in (Nocedal & Wright, Algorithm 7.4); pairs have sᵀy > 0."""
    q, coefficients = g, []
    for s, y in reversed(pairs):
        a = float(s @ q) / float(s @ y)
        coefficients.append(a)
        q = q - a * y
    d = inverse(q)
    for (s, y), a in zip(pairs, reversed(coefficients)):
        d = d + (a - float(y @ d) / float(s @ y)) * s
    return d


def usable(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Those that curve upwards beyond rounding."""
    return [(s, y) for s, y in pairs if float(s @ y) > 1e-10 * float(s.norm()) * float(y.norm())]
