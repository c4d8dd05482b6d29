"""B known to be symmetric: the posterior under a symmetric-Kronecker prior, by a Lyapunov equation in closed form."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infhess.lowrank import LowRank, Tall
from infhess.posterior.base import NO_EVIDENCE, ContradictionError, Posterior, normal
from infhess.posterior.isotropic import agree

if TYPE_CHECKING:
    from infhess.posterior.priors import Symmetric


class SymmetricPosterior(Posterior):
    """E = B_m − b0 I solves E(τI + M) + (τI + M)E = ΔSᵀ + SΔᵀ with unit directions S, M = SSᵀ, τ = (λ0/w0)².

    In the eigenbasis of M (eigenvalues μ, those of SᵀS, and zero) the equation is diagonal:
    E_ij = (ΔSᵀ + SΔᵀ)_ij / (2τ + μᵢ + μⱼ), and the coefficient of the symmetric unit matrix (i, j) has the posterior
    variance w0² · 2τ / (2τ + μᵢ + μⱼ). With P = SF the eigenvectors of μ > 0, E = PAPᵀ + CPᵀ + PCᵀ, where A is small
    and C = (I − PPᵀ) Δ H: all of it is linear in [S Y].
    """

    prior: Symmetric

    @property
    def tau(self) -> float:
        """(λ0/w0)²."""
        return (self.prior.noise / self.prior.scale) ** 2

    @cached_property
    def _modes(self) -> tuple[Tensor, Tensor, Tensor]:
        """μ > 0 (p,), F = Z μ^{−½} and J = Z μ^{½} (m, p): P = SF is orthonormal, SᵀP = J."""
        mu, Z = self.observations.gram_eigh
        keep = mu > 0
        if self.prior.noise == 0:
            self._check_exact(Z[:, ~keep])
        mu, Z = mu[keep], Z[:, keep]
        return mu, Z / mu.sqrt(), Z * mu.sqrt()

    def _check_exact(self, null: Tensor) -> None:
        """Exact products of a symmetric matrix agree where directions repeat, and have a symmetric SᵀY."""
        obs = self.observations
        if null.shape[1]:
            agree(obs.S, obs.Y, null)
        asymmetry = (self.observations.T - self.observations.T.mT).abs()
        size = torch.linalg.vector_norm(obs.Y, dim=0).max()
        if bool((asymmetry > 1e3 * len(self) * torch.finfo(obs.Y.dtype).eps * size).any()):
            i, j = divmod(int(asymmetry.argmax()), len(self))
            raise ContradictionError(
                f"exact products contradict each other (observations {i} and {j}): SᵀY is not symmetric, so no symmetric "
                "matrix has these products; give a noise level above 0"
            )

    @cached_property
    def _core(self) -> Tensor:
        """E = [S Y] core [S Y]ᵀ, symmetric (2m, 2m)."""
        mu, F, J = self._modes
        m, b0 = len(self), self.prior.mean
        SD = self.observations.T - b0 * self.observations.G  # SᵀΔ
        PD = F.mT @ SD @ J
        A = (PD + PD.mT) / (2 * self.tau + mu[:, None] + mu[None, :])
        H = J / (2 * self.tau + mu)
        # PAPᵀ + CPᵀ + PCᵀ with C = ΔH − SF(FᵀSᵀΔH); Δ = Y − b0 S.
        on_S = F @ A @ F.mT / 2 - (b0 * H + F @ (F.mT @ SD @ H)) @ F.mT
        on_Y = H @ F.mT
        core = on_S.new_zeros(2 * m, 2 * m)
        core[:m, :m], core[m:, :m], core[:m, m:] = on_S + on_S.mT, on_Y, on_Y.mT
        return core

    def _mean(self) -> LowRank:
        return LowRank(self.prior.mean, Tall(self.observations.S, self.observations.Y), self._core)

    def _shrinkage(self, mu: Tensor) -> Tensor:
        """Posterior over prior variance of the coefficients (i, j): 2τ / (2τ + μᵢ + μⱼ); 1 where nothing was seen."""
        total = mu[:, None] + mu[None, :]
        return torch.where(total > 0, 2 * self.tau / (2 * self.tau + total).clamp(min=1e-300), 1.0)

    def _split(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates of u in the eigenvectors P, and what is left of it outside of their span."""
        _, F, _ = self._modes
        S = Tall(self.observations.S)
        inside = F.mT @ S.t(u)
        return inside, u - S @ (F @ inside)

    def _variances(self, u: Tensor, v: Tensor) -> Tensor:
        """¼ Σ_ij s_ij (uᵢvⱼ + uⱼvᵢ)² in the eigenbasis of M; the null space enters by |u⊥|, |v⊥| and u⊥ᵀv⊥ alone."""
        mu, _, _ = self._modes
        (a, u_out), (b, v_out) = self._split(u), self._split(v)
        u_out, v_out = u_out.to(a), v_out.to(a)
        uu, vv, uv = u_out.square().sum(0), v_out.square().sum(0), (u_out * v_out).sum(0)
        shrink = self._shrinkage(mu)
        inside = torch.einsum("ij,ik,jk->k", shrink, a * a, b * b) + torch.einsum("ij,ik,jk->k", shrink, a * b, a * b)
        mixed = self._shrinkage(torch.cat([mu, mu.new_zeros(1)]))[:-1, -1]
        across = mixed @ (a * a * vv + b * b * uu + 2 * a * b * uv)
        return self.prior.scale**2 * (inside + across + uu * vv + uv * uv) / 2

    def _sample(self, V: Tensor, generator: torch.Generator | None) -> Tensor:
        """Independent coefficients in the eigenbasis of M = PμPᵀ: inside of span P, across, and outside of it."""
        mu, F, _ = self._modes
        S, p = Tall(self.observations.S), len(mu)
        shrink = self._shrinkage(torch.cat([mu, mu.new_zeros(1)])).sqrt()
        a, out = self._split(V)
        inside = shrink[:p, :p] * _symmetric_normal(p, mu, generator)
        across = self._split(normal(self.shape[0], p, like=V, generator=generator))[1] * (shrink[:p, p] / 2**0.5).to(V)
        draw = S @ (F @ (inside @ a + across.mT.to(a) @ out.to(a))) + across @ a.to(V)
        return self.mean @ V + self.prior.scale * (draw + self._sample_outside(out, generator))

    def _sample_outside(self, out: Tensor, generator: torch.Generator | None) -> Tensor:
        """A draw of B' @ out for out ⊥ P and a symmetric B' of unit scale on the complement of P."""
        Q, R = torch.linalg.qr(out)
        Z = self._split(normal(*Q.shape, like=Q, generator=generator))[1]
        Z -= Q @ (Q.mT @ Z)
        draw: Tensor = (Q @ _symmetric_normal(Q.shape[1], Q, generator) + Z / 2**0.5) @ R
        return draw

    def log_evidence(self) -> Tensor:
        """log p(Y | S), for Y as it was given: N m-dimensional, by the p eigenvalues μ > 0 alone."""
        if self.prior.noise == 0:
            raise ValueError(NO_EVIDENCE)
        obs, (N, m), (mu, _, _) = self.observations, (self.shape[0], len(self)), self._modes
        delta = obs.Y - self.prior.mean * obs.S
        fitted = self._E(obs.S)
        quadratic = (delta.square().sum() - (fitted * delta).sum()).to(mu) / self.prior.noise**2
        pairs = torch.log1p((mu[:, None] + mu[None, :]) / (2 * self.tau)).triu().sum()
        single = torch.log1p(mu / (2 * self.tau)).sum()
        logdet: Tensor = (
            N * (2 * m * math.log(self.prior.noise) + 2 * obs.norms.log().sum()) + pairs + (N - len(mu)) * single
        )
        total: Tensor = quadratic + logdet + N * m * math.log(2 * math.pi)
        return -total / 2

    def _E(self, V: Tensor) -> Tensor:
        columns = Tall(self.observations.S, self.observations.Y)
        return columns @ (self._core @ columns.t(V))


def _symmetric_normal(p: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """A symmetric matrix of independent coefficients: variance 1 on the diagonal, ½ beside it."""
    A = normal(p, p, like=like, generator=generator)
    return (A + A.mT) / 2
