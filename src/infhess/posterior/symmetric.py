"""B known to be symmetric: the posterior under a symmetric-Kronecker prior, from a Lyapunov equation in closed form."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from infhess._checks import column_norms, rounding
from infhess._precision import full_precision
from infhess._random import normal
from infhess.lowrank import ColumnBlocks, LowRank
from infhess.lowrank.orthonormal import tall_qr, tall_svd
from infhess.posterior.base import NO_EVIDENCE, ContradictionError, Posterior, agree
from infhess.posterior.isotropic import IsotropicPrior
from infhess.posterior.observations import Modes


class SymmetricPosterior(Posterior):
    """E = B_m − b0 I solves E(τI + M) + (τI + M)E = ΔSᵀ + SΔᵀ with unit directions S, M = SSᵀ, τ = (λ0/w0)².

    With S = P diag(σ) Vᵀ the equation is diagonal in the basis P of M's range and any basis of its complement:
    E_ij = (ΔSᵀ + SΔᵀ)_ij / (2τ + σᵢ² + σⱼ²), and the coefficient of the symmetric unit matrix (i, j) has the posterior variance
    w0² · 2τ / (2τ + σᵢ² + σⱼ²). So E = PDPᵀ + CPᵀ + PCᵀ, where D is small and C = (I − PPᵀ) Y V diag(σ / (2τ + σ²)).
    """

    prior: IsotropicPrior

    @property
    def tau(self) -> float:
        """(λ0/w0)²."""
        return (self.prior.noise / self.prior.scale) ** 2

    @cached_property
    def _modes(self) -> Modes:
        modes = self.observations.modes
        if self.prior.noise == 0:
            agree(self.observations.Y, modes.null, self.observations.given)
            self._check_symmetric()
        return modes

    def _check_symmetric(self) -> None:
        """Check that exact products have a symmetric SᵀY, as those of a symmetric matrix do."""
        obs = self.observations
        asymmetry = (obs.SY - obs.SY.mT).abs()
        size = column_norms(obs.Y).to(asymmetry)
        bad = asymmetry > 100 * rounding(obs.given, len(self)) * (size[:, None] + size)
        if bool(bad.any()):
            i, j = bad.nonzero()[0].tolist()
            raise ContradictionError(
                f"exact products contradict each other (observations {i} and {j}): SᵀY is not symmetric, so no symmetric "
                "matrix has these products; give a noise level above 0"
            )

    def _mean(self) -> LowRank:
        """b0 I + PDPᵀ + CPᵀ + PCᵀ, with P = A F."""
        modes, mu = self._modes, self._modes.sigma.square()
        PY = modes.F.mT @ ColumnBlocks(modes.A).gram(ColumnBlocks(self.observations.Y)) @ modes.V
        weighted = PY * modes.sigma - self.prior.mean * torch.diag(mu)  # PᵀΔSᵀP
        D = (weighted + weighted.mT) / (2 * self.tau + mu[:, None] + mu)
        gain = modes.V * (modes.sigma / (2 * self.tau + mu))
        # Orthogonalised against P explicitly: for nearly equal directions, Y V / σ is a difference of large terms.
        C = modes.split(ColumnBlocks(self.observations.Y) @ gain)[1]
        a, p = modes.F.shape
        core = mu.new_zeros(a + p, a + p)
        core[:a, :a], core[a:, :a], core[:a, a:] = modes.F @ D @ modes.F.mT, modes.F.mT, modes.F
        return LowRank(self.prior.mean, ColumnBlocks(modes.A, C), core)

    def _shrinkage(self) -> tuple[Tensor, Tensor]:
        """Ratio of posterior to prior variance, 2τ / (2τ + μᵢ + μⱼ), for coefficients within span P (p, p) and across (p,)."""
        mu = self._modes.sigma.square()
        return 2 * self.tau / (2 * self.tau + mu[:, None] + mu), 2 * self.tau / (2 * self.tau + mu)

    def _variances(self, u: Tensor, v: Tensor) -> Tensor:
        """¼ Σ_ij s_ij (uᵢvⱼ + uⱼvᵢ)² in the eigenbasis of M; its null space enters only through |u⊥|, |v⊥| and u⊥ᵀv⊥."""
        (a, u_out), (b, v_out) = self._modes.split(u), self._modes.split(v)
        u_out, v_out = u_out.to(a), v_out.to(a)
        uu, vv, uv = u_out.square().sum(0), v_out.square().sum(0), (u_out * v_out).sum(0)
        within, across = self._shrinkage()
        inside = torch.einsum("ij,ik,jk->k", within, a * a, b * b) + torch.einsum("ij,ik,jk->k", within, a * b, a * b)
        mixed = across @ (a * a * vv + b * b * uu + 2 * a * b * uv)
        variances: Tensor = self.prior.scale**2 * (inside + mixed + uu * vv + uv * uv) / 2
        return variances

    def _sample(self, V: Tensor, generator: torch.Generator | None) -> Tensor:
        """Independent coefficients in the eigenbasis of M: within span P, across, and outside it."""
        modes, (within, across) = self._modes, self._shrinkage()
        p, P = len(modes.sigma), ColumnBlocks(modes.A)
        a, out = modes.split(V)
        inside = within.sqrt() * _symmetric_normal(p, a, generator)
        mixed = modes.split(normal(self.shape[0], p, like=V, generator=generator))[1] * (across / 2).sqrt().to(V)
        draw = P @ (modes.F @ (inside @ a + mixed.mT.to(a) @ out.to(a))) + mixed @ a.to(V)
        return self.mean @ V + self.prior.scale * (draw + self._sample_outside(out, V, generator))

    def _sample_outside(self, out: Tensor, V: Tensor, generator: torch.Generator | None) -> Tensor:
        """A draw of B' @ out for out ⊥ P and a symmetric B' of unit scale on the complement of P."""
        Q, sizes, _ = tall_svd(out)
        keep = sizes > 100 * rounding(V.dtype, V.shape[1]) * torch.linalg.vector_norm(V)
        # A remainder of a column of V within span S is rounding, not a direction of the complement.
        Q, _ = tall_qr(self._modes.split(Q[:, keep])[1])
        Z = self._modes.split(normal(*Q.shape, like=Q, generator=generator))[1]
        Z = Z - Q @ (Q.mT @ Z)
        draw: Tensor = (Q @ _symmetric_normal(Q.shape[1], Q, generator) + Z / 2**0.5) @ (Q.mT @ out)
        return draw

    @full_precision
    def log_evidence(self) -> Tensor:
        """log p(Y | S), for Y as given: a product over modes of S, pairs of modes, and the complement."""
        if self.prior.noise == 0:
            raise ValueError(NO_EVIDENCE)
        obs, modes, (N, m) = self.observations, self._modes, (self.shape[0], len(self))
        w2, l2, mu, p = self.prior.scale**2, self.prior.noise**2, modes.sigma.square(), len(modes.sigma)
        rotation = torch.cat([modes.V, modes.null], 1).to(obs.Y)
        inside, outside = modes.split(
            (obs.Y - self.prior.mean * obs.S) @ rotation
        )  # ΔV within span P, and outside of it
        across = l2 + w2 * torch.cat([mu, mu.new_zeros(m - p)]) / 2
        quadratic = (outside.to(mu).square().sum(0) / across).sum() + inside[:, p:].square().sum() / l2
        logdet = (N - p) * across.log().sum() + p * (m - p) * math.log(l2)
        quadratic, logdet = quadratic + self._pairs(inside[:, :p], mu)[0], logdet + self._pairs(inside[:, :p], mu)[1]
        total: Tensor = quadratic + logdet + 2 * N * obs.norms.log().sum() + N * m * math.log(2 * math.pi)
        return -total / 2

    def _pairs(self, D: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """Quadratic form and log det of D = EPσ + noise within span P.

        D_ij and D_ji share the coefficient E_ij: along (σⱼ, σᵢ) they are signal plus noise, orthogonal to it only noise.
        """
        w2, l2, sigma = self.prior.scale**2, self.prior.noise**2, mu.sqrt()
        total = mu[:, None] + mu
        along = (D * sigma + D.mT * sigma[:, None]).square() / total
        beside = (D * sigma[:, None] - D.mT * sigma).square() / total
        signal = l2 + w2 * total / 2
        upper = torch.triu(torch.ones_like(total), 1)
        quadratic = (D.diagonal().square() / signal.diagonal()).sum() + (upper * (along / signal + beside / l2)).sum()
        logdet = signal.diagonal().log().sum() + (upper * (signal.log() + math.log(l2))).sum()
        return quadratic, logdet


def _symmetric_normal(p: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """A symmetric matrix with independent coefficients: variance 1 on the diagonal, ½ off it."""
    A = normal(p, p, like=like, generator=generator)
    return (A + A.mT) / 2
