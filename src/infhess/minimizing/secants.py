"""What the full gradient has shown along past steps: secants, and the two loops of L-BFGS around any inverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor


class Secant(NamedTuple):
    """A step s, and the change of the full gradient along it, minus the pool's own change if there is a pool."""

    s: Tensor
    change: Tensor


def two_loops(pairs: Sequence[tuple[Tensor, Tensor]], g: Tensor, inverse: Callable[[Tensor], Tensor]) -> Tensor:
    """H g, with H the inverse updated by all y = B s, oldest first (Nocedal & Wright, Algorithm 7.4); pairs have sᵀy > 0."""
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
    """The pairs with positive curvature beyond rounding."""
    return [(s, y) for s, y in pairs if float(s @ y) > 1e-10 * float(s.norm()) * float(y.norm())]
