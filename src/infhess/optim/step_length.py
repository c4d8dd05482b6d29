"""The step that P²B allows for: power iteration on batches that the estimate has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.local import Local
from infhess.optim.scaling import Scaling


class Largest(NamedTuple):
    """The largest |eigenvalue| of P²B on one batch, and whether any curvature on the way was negative."""

    value: float
    negative: bool


def largest(source: BatchSource, local: Local, scaling: Scaling, iterations: int) -> Largest:
    """Power iteration from the gradient, in the geometry of M = P² (but for its factor): x ← M B x.

    With n = yᵀMy for y = Bx, √n is the length of M^{½}BM^{½} z for a unit z = M^{−½}x: no root of M is needed, and a negative
    curvature counts with its size. Stops when the value settles to 2 %.
    """
    y = local.gradient()
    x = scaling(y)
    n = float(y @ x)
    if not 0 < n < float("inf"):
        raise ValueError(f"expected a finite gradient other than zero to measure a step along, got |g|² = {n:g}")
    value, negative = 0.0, False
    for _ in range(iterations):
        y = source.product(local, x / n**0.5)
        curvature = float(x @ y) / n**0.5
        x = scaling(y)
        n, before = float(y @ x), value
        value = n**0.5 if n >= 0 else float("nan")
        negative |= curvature < -1e-3 * value
        if not 0 < n < float("inf") or abs(value - before) < 0.02 * value:
            break
    if not value < float("inf"):
        raise ValueError("a product holds NaN or infinity; is the loss finite and smooth at this point?")
    return Largest(value, negative)


def mean_of(found: Sequence[Largest]) -> Largest:
    """The mean over batches: their maximum would be ruled by the worst batch, a smaller step than training needs."""
    return Largest(sum(f.value for f in found) / len(found), any(f.negative for f in found))
