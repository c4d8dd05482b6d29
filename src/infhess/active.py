"""Algorithm 1 of de Roos & Hennig 2019: a product along a direction, inference, and the next direction from the posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from infhess._checks import count, finite
from infhess._precision import full_precision
from infhess.curvature import Source, as_source
from infhess.lowrank import ColumnBlocks
from infhess.pilot import paper_pilot
from infhess.posterior import CurvatureShaped, Isotropic, Observations, Posterior, Prior, checked_prior
from infhess.posterior.isotropic import IsotropicPosterior

METHODS = ("curvature", "paper")
NO_DIRECTION = (
    "the first gradient is zero, so there is no direction to look along; start elsewhere, or see whether the loss depends on "
    "these parameters"
)
Policy: TypeAlias = Callable[[Posterior, Tensor, Tensor], Tensor | None]


class State(NamedTuple):
    """What is known after a step: the posterior, the last unit direction and its product, and the number of products.

    >>> import torch, infhess
    >>> source = infhess.Products(torch.diag(torch.arange(1.0, 5.0)), gradient=lambda: torch.ones(4))
    >>> states = list(infhess.infer_steps(source, steps=2))
    >>> [(s.step, s.products, round(float(s.direction.norm()), 3)) for s in states]
    [(0, 1, 1.0), (1, 2, 1.0)]
    """

    step: int
    posterior: Posterior
    direction: Tensor
    product: Tensor
    products: int


@full_precision
def infer_steps(
    source: Any,
    steps: int = 16,
    *,
    method: str = "curvature",
    prior: Prior | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[State]:
    """`infer`, one state at a time.

    >>> import torch, infhess
    >>> source = infhess.Products(torch.diag(torch.arange(1.0, 5.0)), gradient=lambda: torch.ones(4))
    >>> for state in infhess.infer_steps(source, steps=16):
    ...     if state.posterior.eigh(1).values[0] > 3.9:  # a stop rule of one's own
    ...         break
    >>> state.products
    3
    """
    source, steps = as_source(source, generator), count(steps, "steps")
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    prior = None if prior is None else checked_prior(prior)
    if method == "paper" and prior is not None and (type(prior) is not Isotropic or prior.mean == 0):
        raise TypeError(f'prior: method="paper" takes Isotropic with a mean other than 0, got {prior}')
    return (_paper if method == "paper" else _curvature)(source, steps, prior)


@full_precision
def infer(
    source: Any,
    steps: int = 16,
    *,
    method: str = "curvature",
    prior: Prior | None = None,
    generator: torch.Generator | None = None,
) -> Posterior:
    """A posterior over the matrix behind a source, from `steps` products along actively chosen directions.

    Args:
        source: a source of products and gradients (`Products`, `Hessian`, …), or a square matrix with `@`.
        steps: the number of products. Fewer are taken if the gradient holds nothing new.
        method: "curvature", the library's best, or "paper", as printed.
        prior: replaces the method's own: `CurvatureShaped()`, or the one from the paper's pilot batches.
        generator: random numbers for the vectors that replace gradients if the source is a matrix.

    >>> import torch
    >>> from infhess.curvature import Products
    >>> g = torch.Generator().manual_seed(0)
    >>> A = torch.diag(torch.tensor([9.0, 4.0, 1.0, 0.1]))
    >>> posterior = infer(Products(A, generator=g), steps=4)
    >>> posterior.eigh(2).values.round().tolist()
    [9.0, 4.0]

    """
    posterior = None
    for state in infer_steps(source, steps, method=method, prior=prior, generator=generator):
        posterior = state.posterior
    if posterior is None:
        raise ValueError(NO_DIRECTION)
    return posterior


def _paper(source: Source, steps: int, prior: Prior | None) -> Iterator[State]:
    """The paper's method: pilot batches set the prior, the first direction comes from their mean gradient, s = −B⁻¹ g."""
    if prior is None:
        prior, r = paper_pilot(source)
    else:
        r = source.gradient()
    yield from _algorithm(source, steps, prior, r, newton_direction)


def _curvature(source: Source, steps: int, prior: Prior | None) -> Iterator[State]:
    """The library's method: directions that no product has reached, with prior and noise in the shape of the curvature."""
    yield from _algorithm(source, steps, prior or CurvatureShaped(), source.gradient(), residual_direction)


def _algorithm(source: Source, steps: int, prior: Prior, r: Tensor, direction: Policy) -> Iterator[State]:
    start = prior.given(Observations.empty(source.size, source.size, r, capacity=steps))
    for i, (posterior,) in enumerate(block_steps(source, [start], steps, r, direction)):
        observations = posterior.observations
        yield State(i, posterior, observations.S[:, i], observations.Y[:, i], source.products)


def block_steps(
    source: Source,
    posteriors: list[Posterior],
    steps: int,
    r: Tensor,
    direction: Policy,
) -> Iterator[list[Posterior]]:
    """Algorithm 1 on all diagonal blocks of a matrix at once: one posterior per block, one product per step for all of them.

    Each block chooses its own direction. What other blocks contribute to its product is noise, unless the source multiplies
    by the diagonal blocks alone.
    """
    sizes = [p.shape[0] for p in posteriors]
    for i in range(steps):
        if not bool(finite(r)):
            raise ValueError(f"the gradient of step {i} holds NaN or infinity; is the loss finite at this point?")
        parts = [direction(p, r_b, p.observations.spare()) for p, r_b in zip(posteriors, torch.split(r, sizes))]
        if all(s is None for s in parts):
            return
        s = _joined(parts, sizes, r)
        # Observe; and get a new noisy gradient at the same point, which the last step does not need.
        y, r = source.product_and_gradient(s) if i + 1 < steps else (source.matvec(s), r)
        ys = torch.split(y, sizes)
        posteriors = [p if s is None else p.extend(s, y_b) for p, s, y_b in zip(posteriors, parts, ys)]  # infer
        yield posteriors


def _joined(parts: list[Tensor | None], sizes: list[int], like: Tensor) -> Tensor:
    """One vector from one direction per block, with zeros for blocks without one."""
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    return torch.cat([like.new_zeros(n) if s is None else s for s, n in zip(parts, sizes)])


def newton_direction(posterior: Posterior, r: Tensor, out: Tensor) -> Tensor | None:
    """s = −B_m⁻¹ r, Eq. (19) of the paper; written to `out`. None if B_m is singular: there is no next direction."""
    if not isinstance(posterior, IsotropicPosterior):
        raise TypeError(f"the paper's direction is for Isotropic, got {posterior.prior}")
    try:
        s = posterior.newton(r, out).neg_()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return None
    return s if bool(finite(s)) and bool(s.any()) else None


def residual_direction(posterior: Posterior, r: Tensor, out: Tensor) -> Tensor | None:
    """The unit vector along r − Y (YᵀY)⁺ Yᵀ r: the part of the gradient that the products do not explain; written to `out`.

    The paper's −B_m⁻¹ r tends, as b0 → 0, to r − Y (SᵀY)⁻¹ Sᵀ r, the residual of conjugate gradients. Under noise SᵀY is
    often indefinite and that projection is oblique and long; the orthogonal one is the residual of the minimal residual
    method. It needs no inverse of a noisy matrix, and its directions are conjugate: SᵀY is triangular, with only noise off
    the diagonal. None if nothing is left of r.
    """
    obs, s = posterior.observations, out.copy_(r)
    length = torch.linalg.vector_norm(r)
    YY = obs.YY  # requested from the first step on, so that it grows by one row per step
    if len(obs):
        scale = YY.diagonal().sqrt().clamp(min=torch.finfo(YY.dtype).tiny)
        values, Z = torch.linalg.eigh(YY / scale[:, None] / scale)
        keep = values > 10 * len(obs) * torch.finfo(r.dtype).eps
        inverse = (Z[:, keep] / values[keep]) @ Z[:, keep].mT
        x = inverse @ (ColumnBlocks(obs.Y).t(r) / scale) / scale
        s.addmv_(obs.Y, x.to(r), alpha=-1.0)
    norm = torch.linalg.vector_norm(s)
    if not bool(norm > 100 * torch.finfo(r.dtype).eps * length):
        return None
    return s.div_(norm)
