"""The paper's general case: matrix-variate Gaussian prior and noise, by two generalised eigenproblems."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from infhess._checks import rounding, small_dtype
from infhess._precision import full_precision
from infhess._random import normal
from infhess.lowrank import Dense, LowRank, Operator
from infhess.posterior.base import NO_EVIDENCE, ContradictionError, GivesPosterior, Posterior, agree
from infhess.posterior.factors import root, times
from infhess.posterior.pencil import Pencil, RightModes, pencil, right_modes


class KroneckerPrior(GivesPosterior, Protocol):
    """The mean and the four factors, tensors of 0, 1 or 2 dimensions."""

    mean: Tensor
    left: Tensor
    right: Tensor
    noise_left: Tensor
    noise_right: Tensor


class KroneckerPosterior(Posterior):
    """B_m = B0 + W X SᵀV, where (W⊗SᵀVS + Λ⊗D) vec X = vec Δ, D = diag(SᵀRS), Δ = Y − B0 S.

    Eq. (17) of de Roos & Hennig 2019, with different factors left and right. U diagonalises W and Λ jointly, Q does the same
    for SᵀVS and D, so that X = U [ (UᵀΔQ) ⊘ (w gᵀ + l hᵀ) ] Qᵀ with the diagonals w, l and g, h.
    Diagonal factors cost O(N m²), dense ones O(N³) once; everything is in double precision.
    """

    prior: KroneckerPrior

    def _double(self, X: Tensor) -> Tensor:
        return X.to(dtype=small_dtype(self.observations.S.device), device=self.observations.S.device)

    @cached_property
    def _W(self) -> Tensor:
        return self._double(self.prior.left)

    @cached_property
    def _L(self) -> Tensor:
        return self._double(self.prior.noise_left)

    @cached_property
    def _V(self) -> Tensor:
        return self._double(self.prior.right)

    @cached_property
    def _S(self) -> Tensor:
        return self._double(self.observations.S)

    @cached_property
    def _D(self) -> Tensor:
        return (self._S * times(self._double(self.prior.noise_right), self._S)).sum(0).clamp(min=0)

    @cached_property
    def _left(self) -> Pencil:
        return pencil(self._W, self._L, self.shape[0])

    @cached_property
    def _right(self) -> RightModes:
        return right_modes(self._S, self._V, self._D, rounding(self.observations.S.dtype, len(self)))

    @cached_property
    def _weights(self) -> Tensor:
        """w gᵀ + l hᵀ (N, p)."""
        return torch.outer(self._left.a, self._right.g) + torch.outer(self._left.l, self._right.h)

    def _inverse_weights(self) -> Tensor:
        return torch.where(self._weights > 0, 1 / self._weights, 0.0)

    def _B0(self, V: Tensor) -> Tensor:
        """B0 V in double precision; a number is the leading diagonal of a rectangular matrix."""
        mean, N = self._double(self.prior.mean), self.shape[0]
        if mean.ndim:
            return times(mean, V)
        out = V.new_zeros(N, V.shape[1])
        out[: min(self.shape)] = mean * V[: min(self.shape)]
        return out

    @cached_property
    def _delta(self) -> Tensor:
        """Δ; what both prior and noise treat as known exactly must agree with the data."""
        Y = self._double(self.observations.Y)
        delta = Y - self._B0(self._S)
        data = self.observations.given
        agree(delta, self._right.null, data)
        size = torch.linalg.vector_norm(Y, dim=0) + torch.linalg.vector_norm(delta, dim=0)
        tolerance = 100 * rounding(data, len(self)) * float(size.max())
        known = torch.where(self._weights == 0, self._rotate(delta), 0.0)
        if bool(((self._left.null.mT @ delta).abs() > tolerance).any()) or bool(
            (known.abs() > tolerance * self._left.scale * torch.linalg.vector_norm(self._right.Q, dim=0)).any()
        ):
            raise ContradictionError(
                "exact products contradict the prior: where left and noise_left are both zero the matrix is taken to be "
                "known, and the products say otherwise; give either a positive scale there"
            )
        return delta

    def _rotate(self, delta: Tensor) -> Tensor:
        """UᵀΔQ."""
        return self._left.t(delta) @ self._right.Q

    def _gain(self, delta: Tensor) -> Tensor:
        """W U [ (UᵀΔQ) ⊘ (w gᵀ + l hᵀ) ] (N, p): the posterior mean is B0 plus this times (VSQ)ᵀ."""
        if not bool(self._L.any()) and bool((self._left.a > 0).all()) and not self._left.null.shape[1]:
            g = self._right.g  # exact products of every row: W cancels, and so does the rounding of its inverse
            return delta @ (self._right.Q * torch.where(g > 0, 1 / g, 0.0))
        return times(self._W, self._left @ (self._rotate(delta) * self._inverse_weights()))

    def _mean(self) -> Operator:
        like = self.observations.Y
        left, right = self._gain(self._delta), self._right.VSQ
        if self.prior.mean.ndim == 2:
            return Dense((self._double(self.prior.mean) + left @ right.mT).to(like))
        d = self.prior.mean if self.prior.mean.ndim == 0 else self.prior.mean.to(like)
        unit = torch.linalg.vector_norm(right, dim=0).clamp(min=torch.finfo(right.dtype).tiny)
        return LowRank(d, (left * unit).to(like), None, (right / unit).to(like))  # each within the range of the dtype

    def _variances(self, u: Tensor, v: Tensor) -> Tensor:
        """(uᵀWu)(vᵀVv) − Σ_ij (UᵀWu)ᵢ² (QᵀSᵀVv)ⱼ² / (w gᵀ + l hᵀ)_ij."""
        u, v = self._double(u), self._double(v)
        Wu = times(self._W, u)
        known = torch.einsum(
            "ij,ik,jk->k", self._inverse_weights(), self._left.t(Wu).square(), (self._right.VSQ.mT @ v).square()
        )
        return (u * Wu).sum(0) * (v * times(self._V, v)).sum(0) - known

    @cached_property
    def _roots(self) -> tuple[Tensor, Tensor]:
        return root(self._W), root(self._L)

    def _sample(self, V: Tensor, generator: torch.Generator | None) -> Tensor:
        """Matheron's rule: a draw (B', Y') from the prior, moved by the posterior's response to Y − Y'."""
        thin = torch.cat([self._S, self._double(V)], dim=1)
        (N, _), m, (W_root, L_root) = self.shape, len(self), self._roots
        gram = root(thin.mT @ times(self._V, thin))
        drawn = times(W_root, normal(N, thin.shape[1], like=thin, generator=generator)) @ gram
        noise = times(L_root, normal(N, m, like=thin, generator=generator)) * self._D.sqrt()
        moved = self._gain(self._delta - drawn[:, :m] - noise)
        draw = self._B0(thin[:, m:]) + drawn[:, m:] + moved @ (self._right.VSQ.mT @ thin[:, m:])
        return draw.to(V)

    @full_precision
    def log_evidence(self) -> Tensor:
        """log N(Y; B0 S, W⊗SᵀVS + Λ⊗D), for Y as given (not divided by |s|)."""
        N, m = self.shape[0], len(self)
        exact = not bool(self._L.any()) or not bool(self._D.any())
        if exact or self._right.null.shape[1] or self._left.null.shape[1] or not bool((self._weights > 0).all()):
            raise ValueError(NO_EVIDENCE)
        quadratic = (self._rotate(self._delta).square() / self._weights).sum()
        logdet = self._weights.log().sum() + m * self._left.logdet + N * self._right.logdet
        total = quadratic + logdet + 2 * N * self.observations.norms.log().sum() + N * m * math.log(2 * math.pi)
        return -total / 2

    @full_precision
    def extend(self, s: Any, y: Any) -> Posterior:
        """The posterior with one more observation; the left eigenproblem does not change, and is not solved again."""
        extended = super().extend(s, y)
        if "_left" in self.__dict__:
            extended.__dict__["_left"] = self._left
        return extended
