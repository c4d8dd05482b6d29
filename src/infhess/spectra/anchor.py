"""Updates a spectrum while parameters move: the change of the matrix on kept data, along the known eigenvectors.

H_t = H_0 + Δ. A fresh estimate of H_0 has the noise of its data. Δu on kept batches, each multiplied before and after the
move, only has the noise of the change. So while Δ is small, few products on few points keep the interval as narrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.reading import FreshData
from infhess.spectra.krylov import Krylov, mean_variance
from infhess.spectra.ritz import Ritz, gaps, ritz
from infhess.spectra.student import weighted_mean

# Chunks of kept data: the change is a small part of the error, so fewer suffice than for a fresh estimate.
CHUNKS, POINTS = 4, 128
# How much may be lost by vectors that no longer fit, in standard errors; it is included in the interval.
LOST = 0.5
# The largest share of the variance that the noise of the change may have.
NOISE = 0.25
# An eigenvalue that has halved or doubled may be a different one.
FACTOR = 2.0


class Piece(NamedTuple):
    """A batch, or a slice of one, with the seed of its dropout."""

    batch: Batch
    seed: int
    points: int


class Kept(NamedTuple):
    """Chunks of data for repeated products; their shares of the points, and 1 − M/n for all the data outside."""

    chunks: list[list[Piece]]
    shares: Tensor
    population_factor: float


def keep(source: BatchSource, points: int) -> Kept:
    """Keep at least this many points, in chunks."""
    reading = FreshData(source.stream, source.draw, source.points_of, points, 1)
    chunks: list[list[Piece]] = [[] for _ in range(CHUNKS)]
    for c, batch in reading.chunks(CHUNKS, source.split and not source.forward_trace.batch_statistics):
        chunks[c].append(Piece(batch, source.seed(), source.points_of(batch)))
    chunks = [chunk for chunk in chunks if chunk]
    sizes = torch.tensor([sum(p.points for p in chunk) for chunk in chunks], dtype=torch.float64)
    return Kept(
        chunks,
        (sizes / sizes.sum()).to(source.like.device),
        1.0 if source.forward_trace.random else reading.population_factor,
    )


def kept_products(source: BatchSource, kept: Kept, U: Tensor) -> Tensor:
    """H^c u_i at the present parameters, for each chunk and each column of U: (C, m, N)."""
    return torch.stack([_chunk_products(source, chunk, U) for chunk in kept.chunks])


def _chunk_products(source: BatchSource, chunk: Sequence[Piece], U: Tensor) -> Tensor:
    total, found = sum(p.points for p in chunk), U.new_zeros(U.shape[1], len(U))
    for piece in chunk:
        local = source.at(piece.batch, piece.seed)
        local.points = piece.points
        for i, u in enumerate(U.unbind(1)):
            found[i] += piece.points / total * source.product(local, u)
    return found


@dataclass(frozen=True)
class Projected:
    """T^c without its directions, with what `ritz` needs to know about them."""

    T: Tensor
    weights: Tensor
    population_factor: Tensor
    residual: float
    eps: float

    def __len__(self) -> int:
        return self.T.shape[1]


def projected(krylov: Krylov) -> Projected:
    """A Krylov space without its directions."""
    p = len(krylov)
    return Projected(krylov.T[:, :p, :p], krylov.weights[:p], krylov.population_factor[:p], krylov.residual, krylov.eps)


class Moved(NamedTuple):
    """The top Ritz pairs at the present parameters, and why they cannot be trusted; None if they can."""

    errors: Ritz
    vectors: Tensor
    doubt: str | None


class Anchor:
    """Ritz pairs of a fresh estimate, and the products of their top k + 1 vectors with kept data at that time."""

    def __init__(self, source: BatchSource, krylov: Krylov, errors: Ritz, k: int) -> None:
        self.source, self.k, self.space, self.errors = source, k, projected(krylov), errors
        self.m = min(k + 1, len(krylov))  # one more than asked for: it may overtake
        self.U = krylov.Q[: len(krylov)].mT @ errors.weights[:, : self.m].to(krylov.Q)
        exact = bool((self.space.population_factor == 0).all())
        population = source.stream.population or POINTS
        self.kept = keep(source, population if exact else POINTS)
        self.before = kept_products(source, self.kept, self.U)

    @property
    def bytes(self) -> int:
        """Bytes of the vectors and their products."""
        return sum(t.numel() * t.element_size() for t in (self.U, self.before))

    def moved(self) -> Moved:
        """Ritz pairs of T + Uᵀ Δ U, with the noise of Δ; what Δ moves out of the span of U counts as truncation."""
        change = kept_products(self.source, self.kept, self.U) - self.before  # Δ^c u_i, (C, m, N)
        inside = (change @ self.U).to(torch.float64)
        D = (inside + inside.mT) / 2
        W, k = self.errors.weights[:, : self.m], self.k
        mean = torch.einsum("c,cab->ab", self.kept.shares, D)
        found = ritz(replace(self.space, T=self.space.T + W @ mean @ W.mT))
        V = W.mT @ found.weights  # (m, p): the new vectors in the basis U
        found = with_noise(found, torch.einsum("ai,cab,bi->ci", V, D, V), self.kept)
        lost = _outside(change, inside, V[:, :k], self.kept.shares)
        truncation = found.truncation.clone()
        truncation[:k] += lost / gaps(found.values, found.se)[:k]
        found = replace(found, truncation=truncation)
        seen = float(mean.diagonal().abs().max() + lost.sqrt().max())
        return Moved(found, self.U @ V[:, :k].to(self.U), self._doubt(found, seen))

    def _doubt(self, found: Ritz, seen: float) -> str | None:
        """The reason for a fresh estimate, or None; `seen` is the size of the change along the vectors."""
        k, before = self.k, self.errors
        top, se = found.values[:k], found.se[:k]
        ratio = top / before.values[:k]
        following = float(before.values[self.m]) if len(before.values) > self.m else -float("inf")
        small = torch.maximum(LOST * se, 0.002 * top.abs()) + found.rounding
        doubts = {
            "vectors no longer fit": not bool((found.truncation[:k] <= small).all()),
            "the change is noisy": not bool((se.square() * (1 - NOISE) <= before.se[:k].square()).all()),
            "a value halved or doubled": not bool(((ratio > 1 / FACTOR) & (ratio < FACTOR)).all()),
            "another may have overtaken": following + seen > float(top[-1]),
            "not resolved": not bool(found.resolved[:k].all()),
        }
        return next((name for name, holds in doubts.items() if holds), None)


def with_noise(found: Ritz, x: Tensor, kept: Kept) -> Ritz:
    """Add the variance of the change x^c_i (C, p), with Satterthwaite's degrees of freedom for the sum."""
    if not kept.population_factor:
        return found
    variance = weighted_mean(x, kept.shares)[1] * kept.population_factor
    free = max(1.0, float(1 / kept.shares.square().sum()) - 1)
    total = found.se.square() + variance
    parts = found.se.pow(4) / found.dof + variance.square() / free
    dof = (total.square() / parts.clamp(min=torch.finfo(parts.dtype).tiny)).clamp(min=2.0)
    causal_se = (found.causal_se.square() + variance).sqrt()
    return replace(found, se=total.sqrt(), dof=torch.where(total > 0, dof, found.dof), causal_se=causal_se)


def _outside(change: Tensor, inside: Tensor, V: Tensor, shares: Tensor) -> Tensor:
    """|(I − UUᵀ) Δ v_i|² without its noise: the squared mean over chunks, minus the variance of that mean."""
    w, V = shares.to(change), V.to(change)
    along = torch.einsum("cmn,mi->cin", change, V)  # (C, k, N)
    mean = torch.einsum("c,cin->in", w, along)
    squares = torch.linalg.vector_norm(along - mean, dim=2).to(torch.float64).square()
    projections = torch.einsum("cml,mi->cil", inside, V.to(inside))
    middle = torch.einsum("c,cil->il", shares, projections)
    squares = squares - (projections - middle).square().sum(2)
    length = torch.linalg.vector_norm(mean, dim=1).to(torch.float64).square() - middle.square().sum(1)
    lost: Tensor = (length - mean_variance(squares.mT, shares)).clamp(min=0.0)
    return lost
