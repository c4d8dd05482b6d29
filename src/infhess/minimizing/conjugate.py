"""Preconditioned conjugate gradients, for an approximate direction; reports curvature that is not positive."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Apply = Callable[[Tensor], Tensor]
# Curvature below minus this share of the largest seen is not rounding; within ± this share it counts as zero.
NEGATIVE = 1e-5


class Solved(NamedTuple):
    """x ≈ A⁻¹b, an estimate of (x − A⁻¹b)ᵀA(x − A⁻¹b) relative to bᵀA⁻¹b, iterations, and whether A proved indefinite."""

    x: Tensor
    left: float
    iterations: int
    negative: bool


def conjugate_gradients(A: Apply, b: Tensor, P2: Apply, tolerance: float, most: int) -> Solved:
    """Iterate until the last iterations contributed less than `tolerance` of the total (Hestenes & Stiefel 1952, Eq. 6:2).

    The reduction of the error in the A-norm by each iteration is known exactly; a residual, in any norm, says little about it.
    Stops early at directions along which A is flat.
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
    """The share of the last two iterations, or of the last quarter of many, since slow convergence has more to come."""
    return sum(gains[-max(2, len(gains) // 4) :]) / sum(gains)
