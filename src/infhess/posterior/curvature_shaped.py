"""The prior shaped like the curvature itself, W ∝ Λ ∝ B: ridge-Nyström as a posterior of the paper's model."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from infhess._checks import column_norms, rounding
from infhess._precision import full_precision
from infhess._random import normal
from infhess.lowrank import ColumnBlocks, LowRank
from infhess.posterior.base import GivesPosterior, Posterior

# The median of a squared standard normal: converts a median of squares into a variance.
MEDIAN_OF_SQUARE = 0.4549364


class RidgePrior(GivesPosterior, Protocol):
    """ρ, or None to estimate it from the products."""

    @property
    def ridge(self) -> float | None:
        """ρ."""


class CurvatureShapedPosterior(Posterior):
    """B_m = Y (T + ρ diag T)⁻¹ Yᵀ with T = SᵀBS, for which the symmetric part of SᵀY is plugged in.

    With W = V = B, Λ = √ρ B and B0 = 0, Eq. (17) of de Roos & Hennig 2019 is exactly Y (T + ρ diag T)⁻¹ (BS)ᵀ, with Y in
    place of BS. Mini-batch noise has this shape (Λ = √ρ B as for a Wishart matrix, ρ = c / batch size).

    The prior assumes B to be positive. If T is not, by noise or by negative curvature, B + cI is inferred from the products
    Y + cS, with −c near the lowest eigenvalue, and c is subtracted from the result: the positive part of an indefinite matrix
    is found as well as that of a positive one, and negative parts of the mean are clipped. T is then divided by √(Tᵢᵢ Tⱼⱼ), so
    that its noise is the same in every entry, clipped to its positive eigenvalues, and the ridge ρ I is added.
    """

    prior: RidgePrior

    @cached_property
    @full_precision
    def noise(self) -> float | None:
        """ρ: given, or from the asymmetry of SᵀY; None (unknown, not zero) if SᵀY is symmetric or too small."""
        if self.prior.ridge is not None:
            return self.prior.ridge
        Y = self.observations.Y
        return asymmetry(self.observations.SY, column_norms(Y), Y.dtype)

    @cached_property
    @full_precision
    def shift(self) -> float:
        """c ≥ 0, if T is indefinite beyond rounding: minus the lowest Ritz value on the span of S, plus half its residual.

        A Ritz value exceeds the lowest eigenvalue by up to its residual; half of that was best among 0, ½ and 1, on nets and on
        regression with small batches.
        """
        T = self.observations.SY
        diagonal = T.diagonal().abs()
        low = float(torch.linalg.eigvalsh((T + T.mT) / 2)[0]) if len(T) else 0.0
        if low >= -rounding(self.observations.S.dtype, len(T)) * float(diagonal.max() if len(T) else 0.0):
            return 0.0
        modes = self.observations.modes
        values, w = torch.linalg.eigh((modes.V.mT @ (T + T.mT) @ modes.V) / 2 / modes.sigma[:, None] / modes.sigma)
        product = ColumnBlocks(self.observations.Y) @ (modes.V @ (w[:, 0] / modes.sigma))
        residual = column_norms(modes.split(product)[1])
        return max(0.0, -float(values[0]) + float(residual) / 2)

    @cached_property
    def _Y(self) -> Tensor:
        """Products of B + cI."""
        return self.observations.Y if self.shift == 0 else self.observations.Y + self.shift * self.observations.S

    @cached_property
    def _SY(self) -> Tensor:
        return self.observations.SY if self.shift == 0 else self.observations.SY + self.shift * self.observations.SS

    @cached_property
    def _T(self) -> Tensor:
        return (self._SY + self._SY.mT) / 2

    @cached_property
    def _modes(self) -> tuple[Tensor, Tensor]:
        """c (p,), F (m, p): (T + ρ diag T)⁻¹ = F diag(1/c) Fᵀ on the directions with clearly positive curvature."""
        diagonal = self._T.diagonal().abs()
        scale = diagonal.clamp(min=float(diagonal.max()) * torch.finfo(diagonal.dtype).eps + 1e-300).sqrt()
        values, Z = torch.linalg.eigh(self._T / scale[:, None] / scale)
        keep = values > rounding(self.observations.S.dtype, len(self)) * values.abs().max().clamp(min=1.0)
        return values[keep] + (self.noise or 0.0), Z[:, keep] / scale[:, None]

    @cached_property
    def _K(self) -> Tensor:
        c, F = self._modes
        return (F / c) @ F.mT

    def _mean(self) -> LowRank:
        mean = LowRank(0.0, ColumnBlocks(self._Y), self._K)
        if self.shift == 0:
            return mean
        values, vectors, _ = mean.eigh(min(len(self), self.shape[0]))
        return LowRank(0.0, vectors, torch.diag((values.to(self._T) - self.shift).clamp(min=0)))

    def _variances(self, u: Tensor, v: Tensor) -> Tensor:
        """The noise of the products, propagated to first order into uᵀB_m v; NaN if the noise is unknown.

        With W = B the model's own variance at the mean is zero, so these bars contain only noise, as far as B_m knows it: with
        few products they are too short. `infhess.spectrum` gives intervals with correct coverage.

        δB_m = δY K Yᵀ + Y K δYᵀ − Y K sym(SᵀδY) K Yᵀ gives uᵀδB_m v = Σⱼ δyⱼᵀ zⱼ with zⱼ = qⱼ (u − Sp/2) + pⱼ (v − Sq/2),
        p = KYᵀu, q = KYᵀv. The covariance is that of a product with a Wishart matrix, Cov(δyⱼ) = ρ (Tⱼⱼ B_m + yⱼyⱼᵀ):
        Λ ∝ B of the paper is its first term.
        """
        if self.noise is None:
            return u.new_full((u.shape[1],), torch.nan)
        a = ColumnBlocks(self._Y).t(u)
        b = a if v is u else ColumnBlocks(self._Y).t(v)
        p, q = self._K @ a, self._K @ b
        # Yᵀ(u − Sp/2) and Yᵀ(v − Sq/2): yⱼᵀzⱼ = qⱼaⱼ + pⱼbⱼ, and B_m = Y K Yᵀ
        a, b = a - self._SY.mT @ p / 2, b - self._SY.mT @ q / 2
        aa, bb, ab = (a * (self._K @ a)).sum(0), (b * (self._K @ b)).sum(0), (a * (self._K @ b)).sum(0)
        spread = self._T.diagonal().abs()[:, None] * (q.square() * aa + p.square() * bb + 2 * p * q * ab)
        variances: Tensor = self.noise * (spread + (q * a + p * b).square()).sum(0)
        return variances

    def _sample(self, V: Tensor, generator: torch.Generator | None) -> Tensor:
        """The mean for products perturbed by a fresh draw of their noise, to first order, as in `variance`."""
        if self.noise is None:
            raise ValueError(UNKNOWN_NOISE)
        Y, (c, F) = ColumnBlocks(self._Y), self._modes
        draws = normal(len(c), len(self), like=c, generator=generator)
        # δY = Y small: the root of B_m is YF c^{−½}, and yⱼ itself corresponds to the j-th unit vector.
        small = (F / c.sqrt()) @ draws * self._T.diagonal().abs().sqrt()
        small = self.noise**0.5 * (small + torch.diag(normal(len(self), like=c, generator=generator)))
        q = self._K @ Y.t(V)
        slope = self._SY @ small
        back = self._K @ (small.mT @ Y.t(V) - (slope + slope.mT) @ q / 2)
        draw: Tensor = self.mean @ V + Y @ (small @ q + back)
        return draw

    @full_precision
    def log_evidence(self) -> Tensor:
        """Not defined: this prior depends on the matrix itself."""
        raise ValueError(
            "log_evidence is not defined for CurvatureShaped: its prior is plugged in from the data; use Isotropic"
        )


UNKNOWN_NOISE = (
    "the noise of these products is unknown (SᵀY is symmetric, as with one batch for all directions, or there are fewer "
    "than 6); give CurvatureShaped(ridge=...) or a fresh batch for each product"
)


def asymmetry(T: Tensor, Y_norms: Tensor, dtype: torch.dtype) -> float | None:
    """ρ = c / batch size from the asymmetry of T = SᵀY: the median of (Tᵢⱼ − Tⱼᵢ)² / 2(|TᵢᵢTⱼⱼ| + T̄ᵢⱼ²) over pairs.

    With a fresh batch for each direction the antisymmetric part of T is noise, with that variance times ρ if the noise has the
    shape of B. None if there is nothing to estimate from: fewer than 6 directions, or T symmetric to rounding.
    """
    m = len(T)
    i, j = torch.triu_indices(m, m, offset=1, device=T.device)
    difference = T[i, j] - T[j, i]
    if m < 6 or not bool((difference.abs() > 100 * rounding(dtype, 1) * Y_norms.max()).any()):
        return None
    mean = (T[i, j] + T[j, i]) / 2
    expected = 2 * (T.diagonal()[i] * T.diagonal()[j]).abs() + 2 * mean.square()
    ratio = difference.square() / expected.clamp(min=torch.finfo(T.dtype).tiny)
    return float(ratio.median()) / MEDIAN_OF_SQUARE
