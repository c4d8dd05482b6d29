"""Gauss quadrature of a spectral measure by Lanczos, and rigorous bounds on its distribution function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infhess._checks import column_norms

# Clip for the free entry of a Radau matrix: it moves a node at x by less than 1/FAR of the spectrum's width.
FAR = 1e8
# A node within this many rounding errors of the products counts as being at x.
ROUNDINGS = 1e2


@dataclass(frozen=True)
class Quadrature:
    """Jacobi matrices T (V, m, m) of V starts, their coupling β (V,) to the rest of the space, and the starts' weights w (V,).

    `eps` is the relative rounding error of the products.
    """

    T: Tensor
    beta: Tensor
    share: Tensor
    eps: float

    @property
    def rounding(self) -> float:
        """How far rounding may have moved a node."""
        return ROUNDINGS * self.eps * float(self.T.diagonal(dim1=1, dim2=2).abs().amax() + self.beta.max())

    def nodes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gauss nodes θ, weights ω (which sum to 1 over all starts) and residuals β |s|, (V, m) each.

        There is an eigenvalue within the residual of every node.
        """
        theta, S = torch.linalg.eigh(self.T)
        return theta, self.share[:, None] * S[:, 0].square(), self.beta[:, None] * S[:, -1].abs()

    def shorter(self, m: int) -> Quadrature:
        """The rule after at most this many products, from the same starts."""
        if m >= self.T.shape[1]:
            return self
        return Quadrature(self.T[:, :m, :m], self.T[:, m - 1, m], self.share, self.eps)

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Least and greatest share of the measure at or below each x (G,), over all measures with these moments.

        From the rule with m + 1 nodes, one of them at x (Gauss–Radau): Σ_{ξ<x} ω ≤ μ(−∞, x) ≤ μ(−∞, x] ≤ Σ_{ξ≤x} ω, the
        Chebyshev–Markov–Stieltjes inequality; Golub & Meurant 2010, sections 3 and 6.
        """
        pairs = [_bounds(T, beta, x, self.rounding) for T, beta in zip(self.T, self.beta)]
        low, high = (torch.stack(side, 1) @ self.share for side in zip(*pairs))
        return low.clamp(0, 1), high.clamp(0, 1)

    def quick_bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of about twice the width, from the Gauss nodes alone, for x of any shape: no eigenproblem for each x."""
        theta, weights, _ = self.nodes()
        low, high = torch.zeros_like(x), torch.zeros_like(x)
        for nodes, w, beta in zip(theta, weights, self.beta):
            sums, open_ = torch.nn.functional.pad(w.cumsum(0), (1, 0)), int(beta > 0)  # β = 0: the rule is exact
            low += sums[(torch.searchsorted(nodes, x - self.rounding) - open_).clamp(min=0)]
            high += sums[(torch.searchsorted(nodes, x + self.rounding, right=True) + open_).clamp(max=len(w))]
        return low, high


def _bounds(T: Tensor, beta: Tensor, x: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
    m = len(T)
    R = torch.zeros(len(x), m + 1, m + 1).to(T)
    R[:, :m, :m], R[:, m, m] = T, _radau(T, beta, x)
    R[:, m - 1, m] = R[:, m, m - 1] = beta
    nodes, S = torch.linalg.eigh(R)
    weights = S[:, 0].square()
    away = nodes - x[:, None]
    # The node at x, and those that rounding cannot separate from it.
    nearest = away.abs().amin(1, keepdim=True).clamp(min=rounding)
    return (weights * (away < -nearest)).sum(1), (weights * (away <= nearest)).sum(1)


def _radau(T: Tensor, beta: Tensor, x: Tensor) -> Tensor:
    """The α that makes x an eigenvalue of the bordered matrix: x + β² e_mᵀ (T − x)⁻¹ e_m."""
    theta, S = torch.linalg.eigh(T)
    tiny = torch.finfo(T.dtype).tiny
    gap = theta - x[:, None]
    gap = torch.where(gap.abs() < tiny, tiny, gap)
    far = FAR * (theta[-1] - theta[0] + theta.abs().max()).clamp(min=tiny)
    entry: Tensor = x + (beta.square() * S[-1].square() / gap).sum(1).nan_to_num().clamp(-far, far)
    return entry


class Lanczos:
    """V parallel runs from the columns of a block, each orthogonalised against all of its own directions."""

    def __init__(self, starts: Tensor, most: int) -> None:
        norms = torch.linalg.vector_norm(starts, dim=0)
        self.Q = starts.new_zeros(starts.shape[1], most + 1, len(starts))
        self.Q[:, 0] = (starts / norms).mT
        self.T = torch.zeros(starts.shape[1], most, most, dtype=torch.float64, device=starts.device)
        self.share = (norms.double().square() / norms.double().square().sum()).to(self.T)
        self.beta = torch.zeros_like(self.share)
        self._taken, self._eps = 0, torch.finfo(starts.dtype).eps

    def directions(self) -> Tensor:
        """The newest directions, (N, V)."""
        return self.Q[:, self._taken].mT

    def take(self, Y: Tensor) -> None:
        """Take the products with the newest directions; a run whose space is invariant continues with zeros, of no weight."""
        j = self._taken
        pairs = [_off(y, Q) for y, Q in zip(Y.unbind(1), self.Q[:, : j + 1])]
        first, rest = torch.stack([along for along, _ in pairs]), torch.stack([r for _, r in pairs])
        self.T[:, j, j] = first[:, j].to(self.T)
        beta = column_norms(rest.mT)
        beta = torch.where(beta > 1e2 * self._eps * column_norms(Y), beta, 0.0)
        self.Q[:, j + 1] = torch.where(beta[:, None] > 0, rest / beta[:, None], 0.0)
        self.beta = beta.to(self.T)
        self._taken += 1
        if self._taken < self.T.shape[1]:
            self.T[:, j, j + 1] = self.T[:, j + 1, j] = self.beta

    def result(self) -> Quadrature:
        """The quadrature after the products so far."""
        m = self._taken
        return Quadrature(self.T[:, :m, :m].clone(), self.beta, self.share, self._eps)


def _off(y: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """Qy, and y orthogonalised twice against the rows of Q: faster as matrix times vector than as a batch of size one."""
    along = Q @ y
    rest = torch.addmv(y, Q.mT, along, alpha=-1)
    return along, torch.addmv(rest, Q.mT, Q @ rest, alpha=-1)


def quadratures(
    apply: Callable[..., Sequence[Tensor]], blocks: Sequence[Tensor], most: Sequence[int]
) -> list[Quadrature]:
    """Quadratures of several matrices at once, each from the columns of its own block, with `most` products per column.

    `apply` multiplies one block with each matrix; blocks of finished runs have no columns.
    """
    runs = [Lanczos(starts, m) for starts, m in zip(blocks, most)]
    for j in range(max(most)):
        products = apply(*(run.directions() if j < m else run.directions()[:, :0] for run, m in zip(runs, most)))
        for run, Y, m in zip(runs, products, most):
            if j < m:
                run.take(Y)
    return [run.result() for run in runs]
