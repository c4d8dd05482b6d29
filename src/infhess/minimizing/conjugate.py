"""Preconditioned conjugate gradients, for a direction to within a tenth; they report curvature that is not positive."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Apply = Callable[[Tensor], Tensor]
# Curvature below minus this share of the largest seen is no rounding; within it, it is zero.
NEGATIVE = 1e-5


class Solved(NamedTuple):
    """x ≈ A⁻¹b, an estimate of (x − A⁻¹b)ᵀA(x − A⁻¹b) relative to bᵀA⁻¹b, iterations, and whether A proved indefinite."""

    x: Tensor
    left: float
    iterations: int
    negative: bool


def conjugate_gradients(A: Apply, b: Tensor, P2: Apply, tolerance: float, most: int) -> Solved:
    """Until the last iterations brought less than `tolerance` of all of them (Hestenes & Stiefel 1952, Eq. 6:2).

    How much an iteration reduces the error in the norm of A is known exactly; a residual, in any norm, says little about it.
    Where A is flat, as far as it is not.
    """
    x, r, z = torch.zeros_like(b), b, P2(b)
    p, rz, largest = z, float(b @ z), 0.0
    first, gains, eps = rz, [0.0], torch.finfo(b.dtype).eps
    for i in range(most):
        if not rz > eps**2 * first:
            return Solved(x, 0.0, i, False)
        Ap = A(p)
        curvature, size = float(p @ Ap), float(p @ p)
        if curvature < -NEGATIVE * max(largest, float(Ap.norm()) / size**0.5) * size:
            return Solved(x if i else z, 1.0, i + 1, True)
        largest = max(largest, curvature / size)
        if curvature <= eps * largest * size:
            return Solved(x if i else z, 1.0, i + 1, False)
        a = rz / curvature
        x, r = x + a * p, r - a * Ap
        gains.append(a * rz)
        left = _left(gains)
        if left <= tolerance:
            return Solved(x, left, i + 1, False)
        z = P2(r)
        before, rz = rz, float(r @ z)
        p = z + rz / before * p
    return Solved(x, _left(gains), most, False)


def _left(gains: list[float]) -> float:
    """The share of the last two iterations, or of the last quarter of many: slow convergence has more to come."""
    return sum(gains[-max(2, len(gains) // 4) :]) / sum(gains)
