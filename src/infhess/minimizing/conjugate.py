"""Preconditioned conjugate gradients, for a direction to a tenth: with a word on curvature that is not positive."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Apply = Callable[[Tensor], Tensor]
# Curvature below minus this share of the largest seen is no rounding; within it, it is zero.
NEGATIVE = 1e-5


class Solved(NamedTuple):
    """x ≈ A⁻¹b, rᵀP²r of what is left of b relative to bᵀP²b, iterations, and whether A proved indefinite."""

    x: Tensor
    left: float
    iterations: int
    negative: bool


def conjugate_gradients(A: Apply, b: Tensor, P2: Apply, rtol: float, most: int) -> Solved:
    """Until rᵀP²r ≤ rtol² bᵀP²b (Hestenes & Stiefel 1952); where A is flat, as far as it is not."""
    x, r, z = torch.zeros_like(b), b, P2(b)
    p, rz, largest = z, float(b @ z), 0.0
    first = rz
    for i in range(most):
        if not rz > rtol**2 * first:
            return Solved(x, max(rz, 0.0) / first if first > 0 else 0.0, i, False)
        Ap = A(p)
        curvature, size = float(p @ Ap), float(p @ p)
        if curvature < -NEGATIVE * max(largest, float(Ap.norm()) / size**0.5) * size:
            return Solved(x if i else z, 1.0, i + 1, True)
        largest = max(largest, curvature / size)
        if curvature <= torch.finfo(b.dtype).eps * largest * size:
            return Solved(x if i else z, rz / first, i + 1, False)
        a = rz / curvature
        x, r = x + a * p, r - a * Ap
        z = P2(r)
        before, rz = rz, float(r @ z)
        p = z + rz / before * p
    return Solved(x, rz / first, most, False)
