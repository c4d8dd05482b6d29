"""Ritz values of averaged products, with the variance that their spread over fresh data shows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infhess.spectrum.krylov import CHUNKS, Krylov
from infhess.spectrum.student import log_interval, one_sided, two_sided

# An eigenvalue stands out from noise if its Ritz value is less than this many standard errors above its unbiased part.
RESOLVED = 2.0


@dataclass(frozen=True)
class Ritz:
    """θ (p,) descending, weights w (p, p), and for each: standard error, degrees of freedom, truncation, causal estimate."""

    values: Tensor
    weights: Tensor
    se: Tensor
    dof: Tensor
    truncation: Tensor
    causal: Tensor
    causal_se: Tensor

    @property
    def resolved(self) -> Tensor:
        """Which values stand out from noise."""
        return self.values - self.causal <= RESOLVED * self.se

    def converged(self, k: int) -> bool:
        """Whether the top k values would hardly move with more directions."""
        small = torch.maximum(0.1 * self.se, 0.002 * self.values.abs())
        return bool((self.truncation <= small)[:k].all())

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """For the eigenvalues of the full-data matrix, each on its own."""
        t = two_sided(level, self.dof)
        low, high = log_interval(self.values, t * self.se)
        down = torch.minimum(low, self.causal - t * self.causal_se)
        return torch.where(self.resolved, low, down), high + self.truncation

    def upper(self, level: float) -> Tensor:
        """One-sided upper bounds."""
        return log_interval(self.values, one_sided(level, self.dof) * self.se)[1] + self.truncation


def ritz(krylov: Krylov, population: int | None) -> Ritz:
    """Eigenpairs of the symmetric part of the mean of T^c, and their errors without a model of the noise.

    Direction j contributes x^c_ij = w_ij u_iᵀ y_j^c to θ_i, from data of its own: se_i² = Σ_j Var_c(x^c_ij)/C, with
    Satterthwaite's degrees of freedom. The upper triangle of T is causal: q_a was chosen before the data of y_j (a ≤ j)
    was read, so that its part of θ_i is unbiased, while the lower one was selected by the noise.
    """
    p = len(krylov)
    T = krylov.T[:, :p, :p]
    mean = T.mean(0)
    values, w = torch.linalg.eigh((mean + mean.mT) / 2)
    values, w = values.flip(0), w.flip(1)
    share = torch.tensor([_unread(m, population) for m in krylov.points], dtype=T.dtype, device=T.device)
    whole = torch.einsum("ji,ai,caj->cij", w, w, T)
    variances = whole.var(0) / CHUNKS * share
    se = variances.sum(1).sqrt()
    dof = variances.sum(1).square() / (variances.square() / (CHUNKS - 1)).sum(1).clamp(min=torch.finfo(T.dtype).tiny)
    dof = torch.where(se > 0, dof.clamp(min=2.0), float(CHUNKS - 1))
    causal = 2 * torch.einsum("ji,ai,caj->cij", w, w, T.triu(1)) + torch.einsum("ji,cjj->cij", w.square(), T)
    return Ritz(
        values, w, se, dof, _truncation(krylov, values, w, se),
        causal.mean(0).sum(1), (causal.var(0) / CHUNKS * share).sum(1).sqrt(),
    )  # fmt: skip


def _truncation(krylov: Krylov, values: Tensor, w: Tensor, se: Tensor) -> Tensor:
    """How far a value may still rise: the residual of its Ritz pair squared, over the gap to the next."""
    following = torch.cat([values[1:], values[-1:] - values[:1].abs()])
    gap = torch.stack([values - following, 0.05 * values.abs(), 2 * se]).amax(0)
    return w[-1].square() * max(krylov.residual, 0.0) / gap.clamp(min=torch.finfo(gap.dtype).tiny)


def _unread(points: int, population: int | None) -> float:
    """1 − M/n, the factor of a finite population; 1 where it is not known."""
    return 1.0 if not population or not points else max(0.0, 1.0 - points / population)
