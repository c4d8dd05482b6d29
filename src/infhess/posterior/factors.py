"""Covariance factors: a number (times the identity), a vector (a diagonal) or a matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def as_matrix(F: Tensor, size: int) -> Tensor:
    """A number, a diagonal or a matrix, as a full matrix."""
    return F if F.ndim == 2 else torch.diag(F.expand(size))


def times(F: Tensor, X: Tensor) -> Tensor:
    """F X for a number, a diagonal or a matrix F."""
    product: Tensor = F @ X if F.ndim == 2 else (F * X.mT).mT
    return product


def root(F: Tensor) -> Tensor:
    """The symmetric square root of a number, a diagonal or a matrix; negative values from rounding count as 0."""
    if F.ndim < 2:
        return F.clamp(min=0).sqrt()
    values, w = torch.linalg.eigh((F + F.mT) / 2)
    symmetric: Tensor = (w * values.clamp(min=0).sqrt()) @ w.mT
    return symmetric
