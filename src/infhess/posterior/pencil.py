"""Two symmetric positive semi-definite matrices made diagonal at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pencil:
    """U (N, p) with UᵀAU = diag(a), UᵀLU = diag(l), Uᵀ(metric)U = I; U is the identity where it is None.

    `null` spans what neither A nor L reaches; `logdet` is the log-determinant of the metric.
    """

    U: Tensor | None
    a: Tensor
    l: Tensor
    null: Tensor
    logdet: Tensor

    def t(self, X: Tensor) -> Tensor:
        """Uᵀ X."""
        return X if self.U is None else self.U.mT @ X

    def __matmul__(self, X: Tensor) -> Tensor:
        """U X."""
        return X if self.U is None else self.U @ X


def pencil(A: Tensor, L: Tensor, size: int) -> Pencil:
    """Diagonalise A and L, each a number, a diagonal or a matrix of `size` rows.

    The paper takes the noise L as the metric, A U = L U diag(a). That needs L positive definite; otherwise the pencil is
    turned round and the metric is A + L, so that exact products (L = 0) are one more case and no limit.
    """
    if A.ndim < 2 and L.ndim < 2:
        a, l = A.expand(size), L.expand(size)
        return Pencil(None, a, l, a.new_zeros(size, 0), a.new_zeros(()))
    A, L = as_matrix(A, size), as_matrix(L, size)
    whiten, null, logdet = _whitening(L)
    if null.shape[1]:
        whiten, null, logdet = _whitening(A + L)
    a, Z = torch.linalg.eigh(whiten.mT @ A @ whiten)
    U = whiten @ Z
    # Below rounding a is noise of either sign; the truth there may be exactly zero, as for a repeated direction.
    a = torch.where(a > size * torch.finfo(a.dtype).eps * a.max(), a, 0.0) if len(a) else a
    return Pencil(U, a, (U * (L @ U)).sum(0).clamp(min=0), null, logdet)


def _whitening(M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """F (N, p) with FᵀMF = I on the range of M, a basis of its null space, and log det on the range.

    The diagonal is divided out first: units of the coordinates are no reason to drop one of them.
    """
    scale = M.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    values, Z = torch.linalg.eigh(inverse[:, None] * M * inverse)
    keep = values > len(M) * torch.finfo(M.dtype).eps * values.max().clamp(min=0)
    F = inverse[:, None] * Z[:, keep] / values[keep].sqrt()
    unscaled = torch.where(scale > 0, inverse, 1.0)
    logdet = values[keep].log().sum() + 2 * scale[scale > 0].log().sum()
    return F, unscaled[:, None] * Z[:, ~keep], logdet


def as_matrix(F: Tensor, size: int) -> Tensor:
    """A number, a diagonal or a matrix, as a matrix."""
    return F if F.ndim == 2 else torch.diag(F.expand(size))


def times(F: Tensor, X: Tensor) -> Tensor:
    """F X for a number, a diagonal or a matrix F."""
    product: Tensor = F @ X if F.ndim == 2 else (F * X.mT).mT
    return product


def root(F: Tensor) -> Tensor:
    """The symmetric square root of a number, a diagonal or a matrix; what rounding made negative counts as 0."""
    if F.ndim < 2:
        return F.clamp(min=0).sqrt()
    values, w = torch.linalg.eigh(F)
    symmetric: Tensor = (w * values.clamp(min=0).sqrt()) @ w.mT
    return symmetric
