"""Products in half precision: along a vector of a length at which nothing overflows, and nothing is rounded away."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from infhess.curvature.flat import length, real

# The length of the vector as a share of |w|, a power of two. In float16 with a scaled loss, shares of 2⁻⁴ to 2⁻¹⁰ give a
# product to rounding on dense nets: longer vectors overflow, shorter ones fall below the smallest number.
SHARE = -7
# If a product overflows all the same, the vector is shortened by this power of two, so many times.
SHORTER, TIMES = -6, 2


class InRange:
    """2ᵏ v, with k such that it is about a hundredth of |w|, as a step may be: H v = 2⁻ᵏ H (2ᵏ v).

    The graph of a gradient may hold numbers in float16, multiplied by the scale of a `GradScaler`: along a step they change by
    a part of themselves. Powers of two are exact, so in other dtypes nothing changes. The list `vectors` is taken over: its
    entries are replaced one by one, so that they are not held twice.

    >>> import torch
    >>> InRange([torch.tensor([2.0**40])], [torch.ones(1)]).product(lambda v: [3 * v[0]])[0] == 3 * 2.0**40
    tensor([True])
    """

    def __init__(self, vectors: list[Tensor], weights: Sequence[Tensor]) -> None:
        self._vectors, self._power = vectors, 0
        given, size = length([[real(v) for v in vectors]]), length([[real(w.detach()) for w in weights]])
        if 0 < given < math.inf and 0 < size < math.inf:
            self._scale(SHARE + math.frexp(size)[1] - math.frexp(given)[1])

    def _scale(self, power: int) -> None:
        self._power += power
        for i in range(len(self._vectors)):
            self._vectors[i] = self._vectors[i] * math.ldexp(1.0, power)

    def product(self, along: Callable[[Sequence[Tensor]], list[Tensor]]) -> list[Tensor]:
        """H v from the product with a vector; taken again along a shorter one if that is not finite."""
        found = along(self._vectors)
        for _ in range(TIMES):
            if math.isfinite(length([[real(h) for h in found]])):
                break
            self._scale(SHORTER)
            found = along(self._vectors)
        return [found.pop(0) * math.ldexp(1.0, -self._power) for _ in self._vectors]
