"""Top eigenpairs of a symmetric operator that is known by its products alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def block_krylov(product: Callable[[Tensor], Tensor], start: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues (descending) and vectors of A, by Rayleigh–Ritz on span[X, AX, A²X, …].

    The block is as wide as k, so that an eigenvalue of multiplicity up to k is found whole. The space grows until the
    residuals |A u − θ u| of the k pairs are at rounding level, or until it is all of ℝᴺ.
    """
    N = start.shape[0]
    tolerance = 50 * torch.finfo(start.dtype).eps
    Q = torch.linalg.qr(start).Q
    AQ = product(Q)
    while True:
        ritz, w = torch.linalg.eigh((Q.mT @ AQ + AQ.mT @ Q) / 2)
        theta, w = ritz.flip(0)[:k], w.flip(1)[:, :k]
        residual = torch.linalg.vector_norm(AQ @ w - (Q @ w) * theta, dim=0)
        if Q.shape[1] >= N or bool((residual <= tolerance * ritz.abs().amax()).all()):
            return theta, Q @ w
        new = _orthogonal(AQ[:, -k:], Q)[:, : N - Q.shape[1]]
        Q, AQ = torch.cat([Q, new], dim=1), torch.cat([AQ, product(new)], dim=1)


def _orthogonal(X: Tensor, Q: Tensor) -> Tensor:
    """X made orthogonal to Q (twice is enough) and orthonormal; what has vanished is replaced by fresh directions."""
    scale = torch.linalg.vector_norm(X, dim=0).clamp(min=torch.finfo(X.dtype).tiny)
    X = X / scale
    X = X - Q @ (Q.mT @ X)
    gone = torch.linalg.vector_norm(X, dim=0) < 1e3 * torch.finfo(X.dtype).eps
    fresh = torch.randn(X.shape, generator=torch.Generator().manual_seed(Q.shape[1]), dtype=torch.float64).to(X)
    X = torch.where(gone, fresh, X)
    for _ in range(2):
        X = torch.linalg.qr(X - Q @ (Q.mT @ X)).Q
    return X
