"""The prior shaped like the curvature itself, W ∝ Λ ∝ B: ridge-Nyström as a posterior of the paper's model."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infhess.lowrank import LowRank, Tall
from infhess.posterior.base import Posterior, normal

if TYPE_CHECKING:
    from infhess.posterior.priors import CurvatureShaped

# The median of a squared standard normal: it turns a median of squares into a variance.
MEDIAN_OF_SQUARE = 0.4549364


class CurvatureShapedPosterior(Posterior):
    """B_m = Y (T + ρ diag T)⁻¹ Yᵀ with T = SᵀBS, and its plug-in the symmetric part of SᵀY.

    With W = V = B, Λ = √ρ B and B0 = 0, Eq. (17) of de Roos & Hennig 2019 is exactly Y (T + ρ diag T)⁻¹ (BS)ᵀ, and Y
    stands for BS. Mini-batch noise has this shape (Λ = √ρ B as for a Wishart matrix, ρ = c / batch size).

    T is divided by √(|Tᵢᵢ Tⱼⱼ|), where its noise is the same in every entry; there the plug-in is clipped to its positive
    eigenvalues (what is not positive is noise, or negative curvature, which the mean leaves out) and the ridge ρ I added.
    """

    prior: CurvatureShaped

    @cached_property
    def noise(self) -> float | None:
        """ρ: given, or from the asymmetry of SᵀY; None (unknown, not zero) where SᵀY is symmetric or too small."""
        if self.prior.ridge is not None:
            return self.prior.ridge
        Y = self.observations.Y
        return asymmetry(self.observations.T, torch.linalg.vector_norm(Y, dim=0), Y.dtype)

    @cached_property
    def _scale(self) -> Tensor:
        diagonal = self.observations.T.diagonal().abs()
        floor = torch.finfo(self.observations.T.dtype).eps * diagonal.max().clamp(
            min=torch.finfo(self.observations.T.dtype).tiny
        )
        return diagonal.clamp(min=floor).sqrt()

    @cached_property
    def _modes(self) -> tuple[Tensor, Tensor]:
        """c (p,), F (m, p): (T + ρ diag T)⁻¹ = F diag(1/c) Fᵀ on the directions whose curvature stood out as positive."""
        correlation = (self.observations.T + self.observations.T.mT) / 2 / self._scale[:, None] / self._scale
        values, Z = torch.linalg.eigh(correlation)
        keep = values > 10 * len(self) * torch.finfo(self.observations.S.dtype).eps * values.abs().max()
        return values[keep] + (self.noise or 0.0), Z[:, keep] / self._scale[:, None]

    @cached_property
    def _K(self) -> Tensor:
        c, F = self._modes
        return (F / c) @ F.mT

    def _mean(self) -> LowRank:
        return LowRank(0.0, Tall(self.observations.Y), self._K)

    def _variances(self, u: Tensor, v: Tensor) -> Tensor:
        """The noise of the products carried to first order into uᵀB_m v; NaN where the noise is unknown.

        With W = B the model's own variance is zero at the mean, so that these bars tell of noise, and only of what B_m
        knows of it: few products make them too short. `infhess.spectrum` gives intervals that hold.

        δB_m = δY K Yᵀ + Y K δYᵀ − Y K sym(SᵀδY) K Yᵀ gives uᵀδB_m v = Σⱼ δyⱼᵀ zⱼ with zⱼ = qⱼ (u − Sp/2) + pⱼ (v − Sq/2),
        p = KYᵀu, q = KYᵀv. The covariance is that of a product with a Wishart matrix, Cov(δyⱼ) = ρ (Tⱼⱼ B_m + yⱼyⱼᵀ):
        Λ ∝ B of the paper is its first term.
        """
        if self.noise is None:
            return u.new_full((u.shape[1],), torch.nan)
        S, Y = Tall(self.observations.S), Tall(self.observations.Y)
        p, q = self._K @ Y.t(u), self._K @ Y.t(v)
        a, b = Y.t(u - S @ p / 2), Y.t(v - S @ q / 2)  # yⱼᵀzⱼ = qⱼaⱼ + pⱼbⱼ, and B_m = Y K Yᵀ
        aa, bb, ab = (a * (self._K @ a)).sum(0), (b * (self._K @ b)).sum(0), (a * (self._K @ b)).sum(0)
        spread = self.observations.T.diagonal().abs()[:, None] * (q.square() * aa + p.square() * bb + 2 * p * q * ab)
        variances: Tensor = self.noise * (spread + (q * a + p * b).square()).sum(0)
        return variances

    def _sample(self, V: Tensor, generator: torch.Generator | None) -> Tensor:
        """The mean with products that are wrong by a fresh draw of their noise, to first order, as `variance`."""
        if self.noise is None:
            raise ValueError(UNKNOWN_NOISE)
        S, Y, (c, F) = Tall(self.observations.S), Tall(self.observations.Y), self._modes
        draws = normal(len(c), len(self), like=c, generator=generator)
        # δY = Y small: the root of B_m is YF c^{−½}, and yⱼ itself is the j-th unit vector.
        small = (F / c.sqrt()) @ draws * self.observations.T.diagonal().abs().sqrt()
        small = self.noise**0.5 * (small + torch.diag(normal(len(self), like=c, generator=generator)))
        q = self._K @ Y.t(V)
        slope = S.gram(Y) @ small
        back = self._K @ (small.mT @ Y.t(V) - (slope + slope.mT) @ q / 2)
        draw: Tensor = self.mean @ V + Y @ (small @ q + back)
        return draw

    def log_evidence(self) -> Tensor:
        """Not defined: this prior is made of the matrix it is a prior of."""
        raise ValueError(
            "log_evidence is not defined for CurvatureShaped: its prior is plugged in from the data; use Isotropic"
        )


UNKNOWN_NOISE = (
    "the noise of these products is unknown (SᵀY is symmetric, as with one batch for all directions, or there are fewer "
    "than 6); give CurvatureShaped(ridge=...) or a fresh batch for each product"
)


def asymmetry(T: Tensor, Y_norms: Tensor, dtype: torch.dtype) -> float | None:
    """ρ = c / batch size from the asymmetry of T = SᵀY: the median of (Tᵢⱼ − Tⱼᵢ)² / 2(|TᵢᵢTⱼⱼ| + T̄ᵢⱼ²) over pairs.

    With a fresh batch for each direction the antisymmetric part of T is noise, of that variance times ρ where the noise
    has the shape of B. None where there is nothing to read: fewer than 6 directions, or T symmetric to rounding.
    """
    m = len(T)
    i, j = torch.triu_indices(m, m, offset=1, device=T.device)
    difference = T[i, j] - T[j, i]
    rounding = 1e3 * torch.finfo(dtype).eps * Y_norms.max() if m else 0.0
    if m < 6 or not bool((difference.abs() > rounding).any()):
        return None
    mean = (T[i, j] + T[j, i]) / 2
    expected = 2 * (T.diagonal()[i] * T.diagonal()[j]).abs() + 2 * mean.square()
    ratio = difference.square() / expected.clamp(min=torch.finfo(T.dtype).tiny)
    return float(ratio.median()) / MEDIAN_OF_SQUARE
