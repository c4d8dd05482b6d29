"""From mini-batches to P²: by the library's own method, and by the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from infhess.active import NO_DIRECTION, block_steps, newton_direction, residual_direction
from infhess.curvature.batch_source import BatchSource, Hessian
from infhess.curvature.batches import Batch, concat, size_of, slice_of
from infhess.curvature.source import Source
from infhess.pilot import paper_layer_pilot, paper_pilot
from infhess.posterior import CurvatureShaped, Isotropic, Observations, Posterior, condition
from infhess.preconditioners.pool import Blockwise, Pool, ScaledSource
from infhess.preconditioners.scaling import (
    Block,
    NoCurvatureError,
    Scaling,
    identity,
    paper_block,
    positive_eigenpairs,
    ridge,
)

# Pool points per direction: 1,024 at rank 32, from prototypes on SARCOS and MNIST.
POINTS_A_DIRECTION = 32
# Curvature below minus this share of the largest is not due to rounding: the loss is not convex.
NEGATIVE = 0.01


@dataclass(frozen=True)
class Built:
    """P², the eigenvalues behind it with their error bars, and whether curvature was negative.

    The step is that of the method if it has one, else NaN.
    """

    scaling: Scaling
    values: Tensor
    std: Tensor
    step: float = float("nan")
    negative: bool = False
    notes: tuple[str, ...] = ()


def pooled(
    source: BatchSource, batches: list[Batch], rank: int, steps: int, root: Tensor | None, known: Tensor | None = None
) -> Built:
    """One matrix over all parameters, from a few batches together: Algorithm 1 on their mean curvature.

    Directions `known` from an earlier estimate (N, j) are multiplied first.
    """
    pool = Pool(source, batches, steps)
    posterior = _inferred(_scaled_source(pool, root), [source.size], steps, known)[0]
    return _whole(source, posterior, rank, root, lambda U: pool.spread(posterior.observations.S, U))


def _whole(
    source: BatchSource, posterior: Posterior, rank: int, root: Tensor | None, bars: Callable[[Tensor], Tensor]
) -> Built:
    """P² for one matrix over all parameters, with error bars along its eigenvectors, and whether curvature was negative."""
    ritz = ritz_values(posterior.observations)
    if not float(ritz[-1]) > 0:
        return _nothing(source, [source.size], root)
    sigma, U = positive_eigenpairs(posterior, rank)
    return Built(ridge([(sigma, U)], root), sigma, bars(U), negative=bool(ritz[0] < -NEGATIVE * ritz[-1]))


def ritz_values(observations: Observations) -> Tensor:
    """Eigenvalues of B on the span of S, ascending: of the pencil (SᵀY, SᵀS), since directions need not be orthogonal."""
    lengths, V = torch.linalg.eigh(observations.SS)
    keep = lengths > 1e-10 * lengths[-1]
    W = V[:, keep] / lengths[keep].sqrt()
    T = W.mT @ observations.SY @ W
    values: Tensor = torch.linalg.eigvalsh((T + T.mT) / 2)
    return values


def blocked(
    source: Hessian, batches: list[Batch], points: int, steps: int, root: Tensor | None, known: Tensor | None
) -> Built:
    """One matrix over all parameters, from the last points of a few batches, with all products in one block.

    Directions are those known from an earlier estimate, and gradients of slices of the pool. Choosing them one by one, by
    Algorithm 1, would be little better, and each would take its own pass.
    """
    if not source.split:
        return pooled(source, batches, steps, steps, root, known)
    whole = concat(batches)
    pool = slice_of(whole, max(0, size_of(whole) - points), size_of(whole))
    local = source.local(pool)
    if local.forward_trace.batch_statistics:
        return pooled(source, batches, steps, steps, root, known)
    old = source.like.new_zeros(source.size, 0) if known is None else known[:, : steps - 1]
    gradients = source.slice_gradients(pool, min(steps - old.shape[1], size_of(pool)))
    if not bool(torch.isfinite(gradients).all()):
        raise ValueError("a gradient holds NaN or infinity; is the loss finite around here?")
    scaled = gradients if root is None else root[:, None] * gradients
    S = torch.linalg.qr(torch.cat([old, scaled / _lengths(scaled)], 1)).Q
    Y = source.block(local, S if root is None else root[:, None] * S)
    posterior = condition(CurvatureShaped(), S, Y if root is None else root[:, None] * Y)
    return _whole(source, posterior, steps, root, lambda U: U.new_full((U.shape[1],), torch.nan))


def _lengths(V: Tensor) -> Tensor:
    lengths = torch.linalg.vector_norm(V, dim=0)
    if not bool(lengths.any()):
        raise ValueError(NO_DIRECTION)
    return torch.where(lengths > 0, lengths, torch.ones_like(lengths))


def read_pool(source: BatchSource, points: int) -> list[Batch]:
    """Batches with at least this many points together; at least two."""
    batches = [source.draw(), source.draw()]
    while sum(map(source.points_of, batches)) < points:
        batches.append(source.draw())
    return batches


def layered(source: BatchSource, sizes: list[int], rank: int, steps: int, root: Tensor | None) -> Built:
    """One matrix per layer, with a fresh batch for each direction."""
    posteriors = _inferred(_scaled_source(Blockwise(source, sizes), root), sizes, steps)
    pairs = [_pairs(p, rank) for p in posteriors]
    values = torch.cat([sigma for sigma, _ in pairs])
    if not len(values):
        return _nothing(source, sizes, root)
    std = torch.cat([_bars(p, len(sigma)) for p, (sigma, _) in zip(posteriors, pairs)])
    order = torch.argsort(values, descending=True)
    return Built(ridge(pairs, root), values[order], std[order])


def _nothing(source: BatchSource, sizes: list[int], root: Tensor | None) -> Built:
    """No positive curvature: no directions, only the step remains to be measured."""
    note = "no direction with positive curvature was found: the step alone was measured"
    return Built(identity(sizes, source.like, root), source.like, source.like, negative=True, notes=(note,))


def _bars(posterior: Posterior, k: int) -> Tensor:
    found = posterior.eigh(k) if k else None
    if found is None or found.std is None:
        return posterior.observations.S.new_full((k,), torch.nan)
    return found.std


def _inferred(
    source: Source,
    sizes: list[int],
    steps: int,
    known: Tensor | None = None,
) -> list[Posterior]:
    posteriors = [CurvatureShaped().given(Observations.empty(n, n, source.like, capacity=steps)) for n in sizes]
    for s in [] if known is None else list(known.mT[: steps - 1]):
        posteriors = [p.extend(s, source.matvec(s)) for p in posteriors]
    left = steps - max(map(len, posteriors))
    steps_made = block_steps(source, posteriors, left, _first_gradient(source), residual_direction)
    try:
        posteriors = _last(steps_made, posteriors)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise ValueError(
            "products differ in size by more than numbers hold; is the loss finite around here?"
        ) from error
    if not any(map(len, posteriors)):
        raise ValueError(NO_DIRECTION)
    return posteriors


def _first_gradient(source: Source) -> Tensor:
    """The first nonzero gradient among a few batches."""
    for _ in range(8):
        g = source.gradient()
        if bool(g.any()):
            break
    return g


def _last(states: Iterator[list[Posterior]], first: list[Posterior]) -> list[Posterior]:
    for state in states:
        first = state
    return first


def _scaled_source(source: Source, root: Tensor | None) -> Source:
    return source if root is None else ScaledSource(source, root)


def _pairs(posterior: Posterior, rank: int) -> tuple[Tensor, Tensor]:
    """Positive eigenpairs; empty for a layer without any."""
    try:
        return positive_eigenpairs(posterior, rank) if len(posterior) else _none(posterior)
    except NoCurvatureError:
        return _none(posterior)


def _none(posterior: Posterior) -> tuple[Tensor, Tensor]:
    like = posterior.observations.S
    return like.new_zeros(0), like.new_zeros(posterior.shape[0], 0)


def paper(source: BatchSource, rank: int, steps: int) -> Built:
    """P² = α²(I + U[β²/Σ − I]Uᵀ) as in the paper: α² = Σ₁/Σ_k, β = 1, with one matrix over all parameters."""
    prior, r = paper_pilot(source)
    block, std = _paper_blocks(source, [source.size], rank, steps, prior, r)[0]
    return Built(Scaling([block], float(block.values[0] / block.values[-1])), block.values, std)


def paper_layers(source: BatchSource, sizes: list[int], rank: int, steps: int) -> Built:
    """The paper's deep-learning variant: one matrix per layer, shared b0, w0, λ0, no α, and the step 1/b0."""
    prior, r = paper_layer_pilot(source)
    found = _paper_blocks(source, sizes, rank, steps, prior, r)
    values, std = (torch.cat(x) for x in zip(*((block.values, std) for block, std in found)))
    order = torch.argsort(values, descending=True)
    return Built(Scaling([block for block, _ in found]), values[order], std[order], 1 / prior.mean)


def _paper_blocks(
    source: BatchSource, sizes: list[int], rank: int, steps: int, prior: Isotropic, r: Tensor
) -> list[tuple[Block, Tensor]]:
    posteriors = [prior.given(Observations.empty(n, n, r, capacity=steps)) for n in sizes]
    posteriors = _last(block_steps(source, posteriors, steps, r, newton_direction), posteriors)
    return [_with_bars(p, min(rank, p.shape[0])) for p in posteriors]


def _with_bars(posterior: Posterior, rank: int) -> tuple[Block, Tensor]:
    block = paper_block(posterior, rank)
    variances = torch.stack([posterior.variance(u, u) for u in block.U.mT])
    return block, variances.sqrt().to(block.values)
