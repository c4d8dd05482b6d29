"""The step that P²B allows for: a few Lanczos iterations on batches that the estimate has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.local import Local
from infhess.optim.scaling import Scaling

# Curvature below minus this share of the largest is no rounding, and no convex loss.
NEGATIVE = 1e-3


class Largest(NamedTuple):
    """The largest |eigenvalue| of P²B on one batch, and whether any curvature on the way was negative."""

    value: float
    negative: bool


def largest(source: BatchSource, local: Local, scaling: Scaling, iterations: int) -> Largest:
    """Lanczos from the gradient on M^{½}BM^{½}, with M = P² but for its factor: one product and one M an iteration.

    No root of M is needed: z = M^{−½}x is carried as x and as p = M⁻¹x. The norm of the tridiagonal matrix, with its last row,
    is a lower bound of |λ|max from the first product on, when it is √(hᵀMh / gᵀMg) with h = BMg. Stops when it settles to 1 %.
    """
    p = local.gradient()
    x = scaling(p)
    n = float(p @ x)
    if not 0 < n < float("inf"):
        raise ValueError(f"expected a finite gradient other than zero to measure a step along, got gᵀMg = {n:g}")
    p, x, previous = p / n**0.5, x / n**0.5, torch.zeros_like(p)
    T = torch.zeros(iterations + 1, iterations + 1, dtype=torch.float64)
    found = Largest(0.0, False)
    for j in range(iterations):
        r = source.product(local, x)
        alpha = float(x @ r)
        r = r - alpha * p - float(T[j, j - 1]) * previous
        Mr = scaling(r)
        beta = max(float(r @ Mr), 0.0) ** 0.5
        if not abs(alpha) + beta < float("inf"):
            raise ValueError("a product holds NaN or infinity; is the loss finite and smooth at this point?")
        T[j, j], T[j, j + 1], T[j + 1, j] = alpha, beta, beta
        before, found = found, _read(T[: j + 2, : j + 1])
        if beta <= 1e-6 * found.value or abs(found.value - before.value) < 0.01 * found.value:
            break
        previous, p, x = p, r / beta, Mr / beta
    return found


def _read(T: Tensor) -> Largest:
    value = float(torch.linalg.matrix_norm(T, 2))
    low = float(torch.linalg.eigvalsh(T[:-1])[0])
    return Largest(value, low < -NEGATIVE * value)


def mean_of(found: Sequence[Largest]) -> Largest:
    """The mean over batches: their maximum would be ruled by the worst batch, a smaller step than training needs."""
    return Largest(sum(f.value for f in found) / len(found), any(f.negative for f in found))
