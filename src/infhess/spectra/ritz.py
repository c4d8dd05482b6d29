"""Ritz values of averaged products, with the variance estimated from their spread over fresh data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from infhess.spectra.held import CHUNKS
from infhess.spectra.student import log_interval, two_sided

# An eigenvalue is resolved from noise if its Ritz value is less than this many standard errors above its unbiased part.
RESOLVED = 2.0


class Projection(Protocol):
    """T^c = Qᵀ H^c Q (C, p, p) of p directions, as `Krylov` holds it.

    weights (p, C) are the shares of the chunks, population_factor (p,) the finite-population factors 1 − M/n; residual is the
    squared residual of the last direction, without its noise.
    """

    @property
    def T(self) -> Tensor: ...  # noqa: D102
    @property
    def weights(self) -> Tensor: ...  # noqa: D102
    @property
    def population_factor(self) -> Tensor: ...  # noqa: D102
    @property
    def residual(self) -> float: ...  # noqa: D102
    @property
    def eps(self) -> float: ...  # noqa: D102
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Ritz:
    """θ (p,) descending, weights w (p, p), and for each: standard error, degrees of freedom, truncation, causal estimate.

    If nothing is known about the noise, the standard error and all bounds are NaN, and no value is resolved. `rounding` is
    the rounding error of a value, whatever the data.
    """

    values: Tensor
    weights: Tensor
    se: Tensor
    dof: Tensor
    truncation: Tensor
    causal: Tensor
    causal_se: Tensor
    rounding: float

    @property
    def resolved(self) -> Tensor:
        """Which values are resolved from noise."""
        return self.values - self.causal <= RESOLVED * self.se + 10 * self.rounding

    def converged(self, k: int) -> bool:
        """Whether the top k values would hardly change with more directions."""
        small = torch.maximum(0.1 * self.se.nan_to_num(), 0.002 * self.values.abs()) + self.rounding
        return bool((self.truncation <= small)[:k].all())

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Intervals for the eigenvalues of the full-data matrix, each on its own."""
        t = two_sided(level, self.dof)
        low, high = log_interval(self.values, t * self.se)
        down = torch.minimum(low, self.causal - t * self.causal_se)
        return torch.where(self.resolved, low, down) - self.rounding, high + self.truncation + self.rounding

    def upper(self, level: float) -> Tensor:
        """One-sided upper bounds."""
        low, high = log_interval(self.values, two_sided(abs(2 * level - 1), self.dof) * self.se)
        return (high if level >= 0.5 else low) + self.truncation + self.rounding


def ritz(krylov: Projection) -> Ritz:
    """Eigenpairs of the symmetric part of the mean of T^c, with errors that assume no model of the noise.

    Direction j contributes x^c_ij = w_ij u_iᵀ y_j^c to θ_i, from its own data: se_i² = Σ_j Var(mean_c x^c_ij), with
    Satterthwaite's degrees of freedom. The upper triangle of T is causal: q_a was chosen before the data of y_j (a ≤ j)
    was read, so its part of θ_i is unbiased, while the lower triangle is subject to selection by noise.
    """
    p = len(krylov)
    T, share = krylov.T[:, :p, :p], krylov.weights[:p]
    mean = torch.einsum("jc,caj->aj", share, T)
    values, w = torch.linalg.eigh((mean + mean.mT) / 2)
    values, w = values.flip(0), w.flip(1)
    whole = torch.einsum("ji,ai,caj->cij", w, w, T)
    causal = 2 * torch.einsum("ji,ai,caj->cij", w, w, T.triu(1)) + torch.einsum("ji,cjj->cij", w.square(), T)
    variances, (causal_mean, causal_variances) = _variances(whole, krylov)[1], _variances(causal, krylov)
    total = variances.sum(1)
    free = (1 / share.square().sum(1) - 1).clamp(min=1.0)  # CHUNKS − 1, or less if there are fewer or unequal chunks
    dof = total.square() / (variances.square() / free).sum(1).clamp(min=torch.finfo(T.dtype).tiny)
    dof = torch.where(total > 0, dof.clamp(min=2.0), float(CHUNKS - 1))
    se = total.sqrt()
    rounding = 4 * krylov.eps * float(values.abs().max())
    return Ritz(
        values,
        w,
        se,
        dof,
        _truncation(krylov, values, w, se),
        causal_mean.sum(1),
        causal_variances.sum(1).sqrt(),
        rounding,
    )


def _variances(x: Tensor, krylov: Projection) -> tuple[Tensor, Tensor]:
    """The weighted mean of x^c_ij (C, i, j) over chunks, and the variance of that mean."""
    p = len(krylov)
    share = krylov.weights[:p].mT[:, None, :]  # (C, 1, j)
    mean = (share * x).sum(0)
    population_factor = krylov.population_factor[:p]
    spread = (share * (x - mean)).square().sum(0) / (1 - share.square().sum(0))  # NaN for one chunk
    return mean, torch.where(population_factor > 0, spread * population_factor, 0.0)


def _truncation(krylov: Projection, values: Tensor, w: Tensor, se: Tensor) -> Tensor:
    """How far a value may still rise: the squared residual of its Ritz pair, over the gap to the next value."""
    return w[-1].square() * max(krylov.residual, 0.0) / gaps(values, se)


def gaps(values: Tensor, se: Tensor) -> Tensor:
    """The gap from each value to the next, at least a twentieth of the value and two standard errors."""
    following = torch.cat([values[1:], values[-1:] - values[:1].abs()])
    gap = torch.stack([values - following, 0.05 * values.abs(), 2 * se.nan_to_num()]).amax(0)
    return gap.clamp(min=torch.finfo(gap.dtype).tiny)
