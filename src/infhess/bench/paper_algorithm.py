"""The algorithm as the paper has it, recomputed at each iteration: the yardstick for `infhess.infer_steps`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from infhess.curvature import Source
from infhess.posterior import Isotropic


def paper_steps(source: Source, steps: int, prior: Isotropic) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the factors WX (N, m) and WS (N, m) of B_m − b0 I; vectorised, with no shortcut for scaled identities.

    Each iteration forms Δ, SᵀWS, the two generalised eigenproblems, X, and the inverse by the matrix inversion lemma.
    """
    r = source.gradient()
    W = torch.full_like(r, prior.scale)
    Lam = torch.full_like(r, prior.noise)
    D, U = W / Lam, Lam.rsqrt()  # WU = ΛUD, UᵀΛU = I for diagonals
    b0 = prior.mean
    S, Y = r.new_empty(len(r), 0), r.new_empty(len(r), 0)
    s = -r / b0
    for _ in range(steps):
        y = source.matvec(s)
        S, Y = torch.cat([S, s[:, None]], 1), torch.cat([Y, y[:, None]], 1)
        delta = Y - b0 * S
        WS = W[:, None] * S
        noise = (S * (Lam[:, None] * S)).sum(0)
        root = noise.rsqrt()
        omega, V = torch.linalg.eigh(root[:, None] * (S.mT @ WS) * root)
        V = root[:, None] * V
        psi = (U[:, None] * (delta @ V)) / (torch.outer(D, omega) + 1)
        X = (U[:, None] * psi) @ V.mT
        WX = W[:, None] * X
        yield WX, WS
        r = source.gradient()
        capacitance = torch.eye(S.shape[1], dtype=r.dtype) + WS.mT @ WX / b0
        s = -(r - WX @ torch.linalg.solve(capacitance, WS.mT @ r / b0)) / b0
