"""The paper's choice, B0 = b0 I, W = w0 I, Λ = λ0 I: everything in closed form, without an eigenproblem of size N."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from infhess._checks import as_vectors, column_norms
from infhess._precision import full_precision
from infhess._random import normal
from infhess.lowrank import ColumnBlocks, LowRank, SingularError
from infhess.lowrank.operator import SINGULAR
from infhess.posterior.base import NO_EVIDENCE, GivesPosterior, Posterior, agree
from infhess.posterior.factors import root
from infhess.posterior.observations import Modes


class IsotropicPrior(GivesPosterior, Protocol):
    """b0, w0 and λ0."""

    @property
    def mean(self) -> float:
        """b0."""

    @property
    def scale(self) -> float:
        """w0."""

    @property
    def noise(self) -> float:
        """λ0."""


class IsotropicPosterior(Posterior):
    """B_m = b0 I + Δ (G + r I)⁻¹ Sᵀ with unit directions S, G = SᵀS, Δ = Y − b0 S, r = (λ0/w0)².

    This is Eq. (11) of de Roos & Hennig 2019 with X of Eq. (17): for scaled identities the left eigenproblem is trivial
    and (w0² I⊗G + λ0² I⊗I) vec X = vec Δ has the solution X = Δ (G + rI)⁻¹ / w0².
    """

    prior: IsotropicPrior

    @property
    def r(self) -> float:
        """(λ0/w0)²: the mean depends on the noise through this ratio alone."""
        return (self.prior.noise / self.prior.scale) ** 2

    @cached_property
    def _modes(self) -> Modes:
        modes = self.observations.modes
        if self.r == 0:
            agree(self.observations.Y, modes.null, self.observations.given)
        return modes

    @cached_property
    def _unseen(self) -> Tensor:
        """The ratio of posterior to prior variance along each mode of S: r / (σ² + r)."""
        return self.r / (self._modes.sigma.square() + self.r)

    def _mean(self) -> LowRank:
        """b0 I + (Y V diag(σ / (σ² + r)) − b0 P diag(σ² / (σ² + r))) Pᵀ with P = A F: Δ = Y − b0 S is never formed."""
        modes = self._modes
        mu, F = modes.sigma.square(), modes.F
        gain = (modes.V * (modes.sigma / (mu + self.r))) @ F.mT
        core = torch.cat([gain, -self.prior.mean * (F * (mu / (mu + self.r))) @ F.mT])
        columns, A, obs = ColumnBlocks(self.observations.Y, modes.A), ColumnBlocks(modes.A), self.observations
        gram = torch.cat([obs.SY, obs.SS], dim=1) if modes.of_S else None
        return LowRank(self.prior.mean, columns, core, A, gram=gram)

    @full_precision
    def newton(self, g: Tensor, out: Tensor | None = None) -> Tensor:
        """B_m⁻¹ g = [g − Δ (SᵀY + b0 r I)⁻¹ Sᵀg] / b0: the inverse without forming the mean, in three passes over S and Y."""
        obs, b0 = self.observations, self.prior.mean
        g = as_vectors(g, "g", self.shape[0], obs.S)
        if b0 == 0:
            raise SingularError(SINGULAR)
        out = torch.mul(g, 1 / b0, out=out)
        if len(self):
            core = obs.SY + b0 * self.r * torch.eye(len(self)).to(obs.SY)
            x = torch.linalg.solve(core, ColumnBlocks(obs.S).t(g)).to(g)
            out.addmv_(obs.Y, x, alpha=-1 / b0).addmv_(obs.S, x)
        return out

    def _variances(self, u: Tensor, v: Tensor) -> Tensor:
        """w0² |u|² [ |v⊥|² + Σᵢ r/(σᵢ² + r) (Pᵀv)ᵢ² ]: no cancellation, however small the noise."""
        a, outside = self._modes.split(v)
        unknown = outside.to(a).square().sum(0) + self._unseen @ a.square()
        variances: Tensor = self.prior.scale**2 * u.to(a).square().sum(0) * unknown
        return variances

    def _sample(self, V: Tensor, generator: torch.Generator | None) -> Tensor:
        """The rows of B − B_m are independent, with covariance w0² [ I − PPᵀ + P diag(r/(σ² + r)) Pᵀ ]: thin roots suffice."""
        a, outside = self._modes.split(V)
        outside = outside.to(a)
        spread = root(outside.mT @ outside + a.mT @ (self._unseen[:, None] * a))
        Z = normal(self.shape[0], V.shape[1], like=V, generator=generator)
        return self.mean @ V + self.prior.scale * Z @ spread.to(V)

    @full_precision
    def log_evidence(self) -> Tensor:
        """log N(Y; b0 S, w0² (G + rI) ⊗ I), for Y as given (not divided by |s|)."""
        if self.prior.noise == 0:
            raise ValueError(NO_EVIDENCE)
        obs, (N, m) = self.observations, (self.shape[0], len(self))
        modes = obs.modes
        mu = torch.cat([modes.sigma.square(), modes.sigma.new_zeros(m - len(modes.sigma))])
        rotation = torch.cat([modes.V, modes.null], 1)
        delta = (obs.Y - self.prior.mean * obs.S) @ rotation.to(obs.Y)
        covariance = self.prior.scale**2 * (mu + self.r)
        quadratic = (column_norms(delta).to(mu).square() / covariance).sum()
        logdet: Tensor = N * (covariance.log().sum() + 2 * obs.norms.log().sum())
        return -(quadratic + logdet + N * m * math.log(2 * math.pi)) / 2
