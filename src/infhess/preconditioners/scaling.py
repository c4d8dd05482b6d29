"""P², a low-rank scaling of gradients from the top of the spectrum: a value, and its two formulas."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infhess._checks import count, finite_number
from infhess._precision import full_precision
from infhess.lowrank import BlockDiagonal, LowRank, Operator
from infhess.posterior import Posterior

Eigenpairs = tuple[Tensor, Tensor]  # values (k,), descending and positive, and vectors (N, k)


class NoCurvatureError(ValueError):
    """There is no positive curvature.

    >>> import torch, infhess
    >>> posterior = infhess.condition(infhess.Isotropic(), torch.eye(2), -torch.eye(2))
    >>> try:
    ...     infhess.preconditioner(posterior)
    ... except infhess.NoCurvatureError:
    ...     print("a maximum")
    a maximum
    """


@dataclass(frozen=True)
class Block:
    """I − U diag(gain) Uᵀ on one block; `values` is the curvature along the columns of U."""

    U: Tensor  # (n, k)
    gain: Tensor  # (k,)
    values: Tensor  # (k,)


@dataclass(frozen=True)
class Scaling:
    """P² = factor · R (I − U diag(gain) Uᵀ) R, with U block-diagonal and R² the scaling of another optimizer (None: I).

    Around SGD the gradient becomes P²g. Around Adam, which moves w by R²g, that step becomes R (I − U diag(gain) Uᵀ) R⁻¹ R²g.
    """

    blocks: list[Block]
    factor: float = 1.0
    root: Tensor | None = None  # R, flat

    @property
    def sizes(self) -> list[int]:
        """Number of parameters in each block."""
        return [len(b.U) for b in self.blocks]

    @property
    def directions(self) -> int:
        """Number of columns of U in all blocks."""
        return sum(len(b.gain) for b in self.blocks)

    @full_precision
    def __call__(self, g: Tensor) -> Tensor:
        """R (I − U diag(gain) Uᵀ) R g: P²g without the factor."""
        g = g if self.root is None else self.root * g
        parts = [v - b.U @ (b.gain.to(v) * (b.U.mT @ v)) for b, v in zip(self.blocks, torch.split(g, self.sizes))]
        out = torch.cat(parts) if len(parts) > 1 else parts[0]
        return out if self.root is None else self.root * out

    def operator(self) -> Operator:
        """P² as an operator."""
        roots = [None] * len(self.blocks) if self.root is None else torch.split(self.root, self.sizes)
        parts = [self._block(b, r) for b, r in zip(self.blocks, roots)]
        return parts[0] if len(parts) == 1 else BlockDiagonal(parts)

    def _block(self, block: Block, root: Tensor | None) -> LowRank:
        core = -self.factor * torch.diag(block.gain)
        if root is None:
            return LowRank(self.factor, block.U, core)
        return LowRank(self.factor * root.square(), root[:, None] * block.U, core)


def identity(sizes: list[int], like: Tensor, root: Tensor | None = None) -> Scaling:
    """No directions: gradients are unchanged, up to the root."""
    zero = torch.zeros(0, dtype=torch.float64, device=like.device)
    return Scaling([Block(like.new_zeros(n, 0), zero, zero) for n in sizes], root=root)


def ridge(pairs: list[Eigenpairs], root: Tensor | None = None) -> Scaling:
    """P² = U(Σ+ρ)⁻¹Uᵀ + (I − UUᵀ)/ρ, one ρ for all blocks: the largest of their smallest eigenvalues.

    ρ stands for curvature that was not seen, which in each block may be as large as the smallest eigenvalue seen.
    """
    rho = max(float(sigma[-1]) for sigma, _ in pairs if len(sigma))
    small = [sigma.to(torch.float64) for sigma, _ in pairs]
    blocks = [Block(U, s / (s + rho), s) for s, (_, U) in zip(small, pairs)]
    return Scaling(blocks, 1 / rho, root)


def paper_block(posterior: Posterior, rank: int) -> Block:
    """P² = I + U [1/Σ − I] Uᵀ, Eq. (20) of de Roos & Hennig 2019 squared with α = β = 1: singular values and left vectors."""
    sigma, U = _singular_pairs(posterior, rank)
    sigma = sigma.to(torch.float64)
    return Block(U, 1 - 1 / sigma, sigma)


@full_precision
def paper_preconditioner(posterior: Posterior, rank: int, *, alpha: float | None = None, beta: float = 1.0) -> LowRank:
    """P = α (I + U [β/√Σ − I] Uᵀ), Eq. (20) of de Roos & Hennig 2019, with α² = Σ₁/Σ_k unless given; apply P².

    Σ and U are the `rank` largest singular values and left singular vectors of the posterior mean. β = 1 assumes a loss
    whose small eigenvalues are far below 1, and is not invariant to its scale.

    >>> import torch
    >>> from infhess.posterior import Isotropic, condition
    >>> posterior = condition(Isotropic(1.0), torch.eye(3)[:, :1], 4 * torch.eye(3)[:, :1])
    >>> paper_preconditioner(posterior, 1).dense().tolist()
    [[0.5, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    sigma, U = _singular_pairs(posterior, rank)
    if alpha is None:
        alpha = float((sigma[0] / sigma[-1]).sqrt())
    alpha = finite_number(alpha, "alpha", least=0.0, strict=True)
    beta = finite_number(beta, "beta", least=0.0, strict=True)
    return LowRank(alpha, U, torch.diag(alpha * (beta / sigma.sqrt() - 1)))


def _singular_pairs(posterior: Posterior, rank: int) -> Eigenpairs:
    sigma, U, _ = posterior.svd(rank)
    if not bool((sigma > 0).all()):
        raise NoCurvatureError(
            f"rank: the posterior mean has fewer than {rank} singular values above 0; ask for a lower rank"
        )
    return sigma, U


@full_precision
def preconditioner(posterior: Posterior, rank: int | None = None) -> Operator:
    """P² = U (Σ + ρI)⁻¹ Uᵀ + (I − UUᵀ)/ρ with ρ = Σ_k: the inverse of the posterior mean plus ρI.

    `rank` is k, by default the number of positive eigenvalues. The scale is that of an inverse curvature: a step of 1 is
    Newton's, and multiplying the loss by a number divides P² by it.

    >>> import torch
    >>> from infhess.posterior import CurvatureShaped, condition
    >>> B = torch.diag(torch.tensor([8.0, 2.0, 1.0]))
    >>> P2 = preconditioner(condition(CurvatureShaped(), torch.eye(3)[:, :2], B[:, :2]))
    >>> (1 / P2.dense().diagonal()).round().tolist()
    [10.0, 4.0, 2.0]
    """
    return ridge([positive_eigenpairs(posterior, rank)]).operator()


def positive_eigenpairs(posterior: Posterior, rank: int | None = None) -> Eigenpairs:
    """The positive eigenvalues of the posterior mean, descending, at most `rank` of them, and their vectors."""
    most = min(len(posterior), posterior.shape[0])
    k = most if rank is None else min(count(rank, "rank"), most)
    values, vectors, _ = posterior.mean.eigh(k)
    keep = values > 1e2 * torch.finfo(values.dtype).eps * values[0].clamp(min=0)
    if not bool(keep.any()):
        raise NoCurvatureError(
            "the posterior mean has no positive eigenvalue, so there is no curvature to precondition with"
        )
    return values[keep], vectors[:, keep]
