"""Joint diagonalisation of two symmetric positive semi-definite matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infhess.posterior.factors import as_matrix, root, times


@dataclass(frozen=True)
class Pencil:
    """U (N, p) with UᵀAU = diag(a), UᵀLU = diag(l), Uᵀ(metric)U = I; U = None means the identity.

    `null` (N, q) spans the common null space of A and L; `logdet` is the log-determinant of the metric.
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

    @property
    def scale(self) -> float:
        """The largest factor by which U may lengthen a vector."""
        return (
            1.0 if self.U is None or not self.U.numel() else float(torch.linalg.matrix_norm(self.U, 2).clamp(min=1.0))
        )


def pencil(A: Tensor, L: Tensor, size: int) -> Pencil:
    """Diagonalise A and L, each a number, a diagonal or a matrix of `size` rows.

    The paper takes the noise L as the metric, A U = L U diag(a), which needs L positive definite. Otherwise the metric is
    A + L, so that exact products (L = 0) are an ordinary case and not a limit.
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
    l = (U * (L @ U)).sum(0)
    # Below rounding both are noise of either sign; the true value may be exactly zero, as for a row without noise.
    cut = size * torch.finfo(a.dtype).eps * (a.max().clamp(min=1.0) if len(a) else 1.0)
    return Pencil(U, torch.where(a > cut, a, 0.0), torch.where(l > cut, l, 0.0), null, logdet)


def _whitening(M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """F (N, p) with FᵀMF = I on the range of M, a basis of its null space, and log det on the range.

    The diagonal is divided out first, so that no coordinate is dropped because of its units.
    """
    scale = M.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(scale > 0, 1 / scale, 0.0)
    values, Z = torch.linalg.eigh(inverse[:, None] * M * inverse)
    keep = values > len(M) * torch.finfo(M.dtype).eps * values.max().clamp(min=0)
    F = inverse[:, None] * Z[:, keep] / values[keep].sqrt()
    null = torch.where(scale > 0, inverse, 1.0)[:, None] * Z[:, ~keep]
    logdet = values[keep].log().sum() + 2 * scale[scale > 0].log().sum()
    return F, null / torch.linalg.vector_norm(null, dim=0), logdet


@dataclass(frozen=True)
class RightModes:
    """Q (m, p) with QᵀSᵀVSQ = diag(g) and QᵀDQ = diag(h), VSQ (M, p); S `null` = 0 where D is zero; log det of the metric."""

    Q: Tensor
    g: Tensor
    h: Tensor
    VSQ: Tensor
    null: Tensor
    logdet: Tensor


def right_modes(S: Tensor, V: Tensor, D: Tensor, cut: float) -> RightModes:
    """The pencil of SᵀVS and a diagonal D, from the singular values of V^{½}S, never from their squares.

    The metric is D if it is positive, and D + diag(SᵀVS) if a direction has no noise. Singular values below `cut` times the
    largest are rounding of the data and count as zero.
    """
    half = root(V)
    VS = times(half, S)
    noisy = D > 0
    metric = D if bool(noisy.all()) else D + VS.square().sum(0)
    unit = torch.where(metric > 0, metric.rsqrt(), 0.0)
    U, sigma, Zt = torch.linalg.svd(VS * unit, full_matrices=False)
    keep = sigma > cut * sigma[0]
    U, sigma, Z = U[:, keep], sigma[keep], Zt[keep].mT
    rest = torch.linalg.qr(Z, mode="complete").Q[:, len(sigma) :]  # directions that repeat others
    logdet = metric.log().sum()
    if not bool(noisy.any()):
        ones = torch.ones_like(sigma)
        Q = unit[:, None] * Z / sigma
        return RightModes(Q, ones, 0 * ones, times(half, U), unit[:, None] * rest, logdet + 2 * sigma.log().sum())
    if bool(noisy.all()):
        zeros = sigma.new_zeros(rest.shape[1])
        g = torch.cat([sigma.square(), zeros])
        VSQ = times(half, torch.cat([U * sigma, U.new_zeros(len(U), rest.shape[1])], 1))
        return RightModes(unit[:, None] * torch.cat([Z, rest], 1), g, torch.ones_like(g), VSQ, rest[:, :0], logdet)
    # Some directions have noise and some have none: the general pencil of two small matrices.
    mixed = pencil((Z * sigma.square()) @ Z.mT, torch.diag(D * unit.square()), len(D))
    Q = unit[:, None] * (mixed @ torch.eye(len(D)).to(D))
    return RightModes(Q, mixed.a, mixed.l, times(V, S @ Q), unit[:, None] * mixed.null, logdet + mixed.logdet)
