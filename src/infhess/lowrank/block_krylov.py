"""Top eigenpairs of a symmetric operator from its products alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from infhess.lowrank.orthonormal import tall_qr

MOST_ROUNDS = 300


def block_krylov(product: Callable[[Tensor], Tensor], start: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues (descending) and vectors of A, by Rayleigh–Ritz on span[X, AX, A²X, …].

    The block has k columns, so that an eigenvalue of multiplicity up to k is found completely. The space grows until the
    residuals |A u − θ u| of the k pairs are √eps of the largest value (the values are then accurate to eps), or until it is
    all of ℝᴺ. It restarts from the best 2k vectors when it reaches 12k + 40, so that memory stays linear in N.
    """
    N, most = start.shape[0], 12 * k + 40
    Q = tall_qr(start)[0]
    AQ = product(Q)
    T = Q.mT @ AQ
    for _ in range(MOST_ROUNDS):
        ritz, w = torch.linalg.eigh((T + T.mT) / 2)
        ritz, w = ritz.flip(0), w.flip(1)
        residual = AQ @ w[:, :k] - (Q @ w[:, :k]) * ritz[:k]
        small = torch.linalg.vector_norm(residual, dim=0) <= torch.finfo(start.dtype).eps ** 0.5 * ritz.abs().amax()
        if Q.shape[1] >= N or bool(small.all()):
            break
        if Q.shape[1] + k > most:
            Q, AQ, T = Q @ w[:, : 2 * k], AQ @ w[:, : 2 * k], torch.diag(ritz[: 2 * k])
        new = _orthogonal(residual, Q)[:, : N - Q.shape[1]]
        A_new = product(new)
        cross = Q.mT @ A_new
        T = torch.cat([torch.cat([T, cross], 1), torch.cat([cross.mT, new.mT @ A_new], 1)])
        Q, AQ = torch.cat([Q, new], 1), torch.cat([AQ, A_new], 1)
    return ritz[:k], Q @ w[:, :k]


def _orthogonal(X: Tensor, Q: Tensor) -> Tensor:
    """X orthogonalised against Q (twice is enough) and orthonormal; vanished columns are replaced by fresh directions."""
    X = X / torch.linalg.vector_norm(X, dim=0).clamp(min=torch.finfo(X.dtype).tiny)
    X = X - Q @ (Q.mT @ X)
    gone = torch.linalg.vector_norm(X, dim=0) < 1e3 * torch.finfo(X.dtype).eps
    fresh = torch.randn(X.shape, generator=torch.Generator().manual_seed(Q.shape[1]), dtype=torch.float64).to(X)
    X = torch.where(gone, fresh, X)
    for _ in range(2):
        X = tall_qr(X - Q @ (Q.mT @ X))[0]
    return X
