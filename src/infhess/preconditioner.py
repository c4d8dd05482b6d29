"""Low-rank scaling of gradients: P² from what is known of the top of the spectrum."""

from __future__ import annotations

import torch
from torch import Tensor

from infhess._checks import count, finite_number
from infhess._precision import full_precision
from infhess.lowrank import LowRank
from infhess.posterior import Posterior


class NoCurvatureError(ValueError):
    """Nothing curves upwards."""


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
    sigma, U, _ = posterior.svd(rank)
    if not bool((sigma > 0).all()):
        raise ValueError(
            f"rank: the posterior mean has fewer than {rank} singular values above 0; ask for a lower rank"
        )
    alpha = (
        float((sigma[0] / sigma[-1]).sqrt()) if alpha is None else finite_number(alpha, "alpha", least=0.0, strict=True)
    )
    beta = finite_number(beta, "beta", least=0.0, strict=True)
    return LowRank(alpha, U, torch.diag(alpha * (beta / sigma.sqrt() - 1)))


@full_precision
def preconditioner(posterior: Posterior, rank: int | None = None) -> LowRank:
    """P² = U (Σ + ρI)⁻¹ Uᵀ + (I − UUᵀ)/ρ with ρ = Σ_k: the posterior mean plus ρI on what was not seen, inverted.

    `rank` is k, by default all the positive eigenvalues that the observations give. The scale is that of an inverse
    curvature, so that a step of 1 is Newton's and multiplying the loss by a number divides P² by it.

    >>> import torch
    >>> from infhess.posterior import CurvatureShaped, condition
    >>> B = torch.diag(torch.tensor([8.0, 2.0, 1.0]))
    >>> P2 = preconditioner(condition(CurvatureShaped(), torch.eye(3)[:, :2], B[:, :2]))
    >>> (1 / P2.dense().diagonal()).round().tolist()
    [10.0, 4.0, 2.0]
    """
    return ridge_inverse(*positive_eigenpairs(posterior, rank))


def positive_eigenpairs(posterior: Posterior, rank: int | None = None) -> tuple[Tensor, Tensor]:
    """The positive eigenvalues of the posterior mean, descending, `rank` of them at the most, and their vectors."""
    most = min(len(posterior), posterior.shape[0])
    k = most if rank is None else min(count(rank, "rank"), most)
    values, vectors, _ = posterior.mean.eigh(k)
    keep = values > 1e2 * torch.finfo(values.dtype).eps * values[0].clamp(min=0)
    if not bool(keep.any()):
        raise NoCurvatureError(
            "the posterior mean has no positive eigenvalue, so there is no curvature to precondition with"
        )
    return values[keep], vectors[:, keep]


def ridge_inverse(sigma: Tensor, U: Tensor) -> LowRank:
    """U (Σ + ρI)⁻¹ Uᵀ + (I − UUᵀ)/ρ with ρ the smallest of Σ."""
    small = sigma.to(torch.float64)
    rho = small[-1]
    return LowRank(1 / rho, U, torch.diag(1 / (small + rho) - 1 / rho))
