"""The paper's choice, B0 = b0 I, W = w0 I, Λ = λ0 I: everything in closed form, no eigenproblem of size N."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infhess._checks import as_vectors
from infhess.lowrank import LowRank, SingularError, Tall
from infhess.lowrank.operator import SINGULAR
from infhess.posterior.base import NO_EVIDENCE, Posterior, contradiction, normal
from infhess.posterior.pencil import root

if TYPE_CHECKING:
    from infhess.posterior.priors import Isotropic


class IsotropicPosterior(Posterior):
    """B_m = b0 I + Δ (G + r I)⁻¹ Sᵀ with unit directions S, G = SᵀS, Δ = Y − b0 S, r = (λ0/w0)².

    This is Eq. (11) of de Roos & Hennig 2019 with X of Eq. (17): for scaled identities the left eigenproblem is trivial
    and (w0² I⊗G + λ0² I⊗I) vec X = vec Δ has the solution X = Δ (G + rI)⁻¹ / w0².
    """

    prior: Isotropic

    @property
    def r(self) -> float:
        """(λ0/w0)²: all of the noise that the mean depends on."""
        return (self.prior.noise / self.prior.scale) ** 2

    @cached_property
    def K(self) -> Tensor:
        """(G + rI)⁻¹ on the range of G (m, m): it only ever meets Sᵀ, which is zero on the null space of G = SᵀS.

        Exact products of repeated directions must agree there.
        """
        mu, Z = self.observations.gram_eigh
        if self.r == 0 and bool((mu == 0).any()):
            agree(self.observations.S, self.observations.Y, Z[:, mu == 0])
        inverse = torch.where(mu > 0, 1 / (mu + self.r), 0.0)
        return (Z * inverse) @ Z.mT

    def _mean(self) -> LowRank:
        # Δ = [Y S] [I; −b0 I] is never formed: 7 to 15 copies of S.
        columns = Tall(self.observations.Y, self.observations.S)
        core = torch.cat([self.K, -self.prior.mean * self.K])
        return LowRank(self.prior.mean, columns, core, Tall(self.observations.S))

    def newton(self, g: Tensor, out: Tensor | None = None) -> Tensor:
        """B_m⁻¹ g = [g − Δ (SᵀY + b0 r I)⁻¹ Sᵀg] / b0: the inverse without the mean, three passes over S and Y."""
        obs, b0 = self.observations, self.prior.mean
        g = as_vectors(g, "g", self.shape[0], obs.S)
        if b0 == 0:
            raise SingularError(SINGULAR)
        out = torch.mul(g, 1 / b0, out=out)
        if len(self):
            core = obs.T + b0 * self.r * torch.eye(len(self)).to(obs.T)
            x = torch.linalg.solve(core, Tall(obs.S).t(g)).to(g)
            out.addmv_(obs.Y, x, alpha=-1 / b0).addmv_(obs.S, x)
        return out

    def _variances(self, u: Tensor, v: Tensor) -> Tensor:
        """w0² |u|² [ |v|² − vᵀS (G + rI)⁻¹ Sᵀv ]."""
        a = Tall(self.observations.S).t(v)
        left = (self.prior.scale**2 * u.to(a).square().sum(0), v.to(a).square().sum(0))
        return left[0] * (left[1] - ((self.K @ a) * a).sum(0))

    def _sample(self, V: Tensor, generator: torch.Generator | None) -> Tensor:
        """Given a mean, row a of B − B_m is N(0, w0² (I − S (G + rI)⁻¹ Sᵀ)): thin roots suffice."""
        a = Tall(self.observations.S).t(V)
        covariance = V.mT.to(a) @ V.to(a) - a.mT @ self.K @ a
        spread = root((covariance + covariance.mT) / 2)
        Z = normal(self.shape[0], V.shape[1], like=V, generator=generator)
        return self.mean @ V + self.prior.scale * Z @ spread.to(V)

    def log_evidence(self) -> Tensor:
        """log N(Y; b0 S, w0² (G + rI) ⊗ I), for Y as it was given (not divided by |s|)."""
        if self.prior.noise == 0:
            raise ValueError(NO_EVIDENCE)
        obs, (N, m) = self.observations, (self.shape[0], len(self))
        mu, Z = obs.gram_eigh
        delta = (obs.Y - self.prior.mean * obs.S) @ Z.to(obs.Y)
        covariance = self.prior.scale**2 * (mu + self.r)
        quadratic = (delta.square().sum(0).to(mu) / covariance).sum()
        logdet: Tensor = N * (covariance.log().sum() + 2 * obs.norms.log().sum())
        return -(quadratic + logdet + N * m * math.log(2 * math.pi)) / 2


def agree(S: Tensor, Y: Tensor, null: Tensor) -> None:
    """Exact products Y of directions S with S @ null = 0 must have Y @ null = 0; else they contradict each other."""
    misfit = torch.linalg.vector_norm(Y @ null.to(Y), dim=0)
    size = torch.linalg.vector_norm(Y, dim=0)
    tolerance = 1e3 * len(null) * torch.finfo(Y.dtype).eps
    if bool((misfit > tolerance * size.max()).any()):
        worst = null[:, int(misfit.argmax())]
        raise contradiction(int(worst.abs().argmax()))
