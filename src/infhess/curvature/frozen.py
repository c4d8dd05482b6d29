"""A fixed sample of the data: products with its matrix are reproducible, and so are those with its two halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch, concat, slice_of, tensors
from infhess.curvature.graphs import MEMORY, Graphs, multiplied
from infhess.curvature.reading import FreshData
from infhess.curvature.source import Source

# Repeated products of a vector that differ by more than this many rounding errors are noisy.
REPEATS = 1e4

# The first batches, up to this many, are compared before the data is kept.
FEW = 8

Apply = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Frozen:
    """The matrix H_M of M fixed points, and those of its two halves, H_A and H_B.

    `apply` takes up to three blocks of columns and returns H_M S, H_A A and H_B B from one pass over the data. `exact`: the
    sample is all of the data. `population_factor` is 1 − M/n, the variance factor for sampling without replacement, or 1.
    `population` is n, if it is known and products are reproducible.
    """

    apply: Apply = field(repr=False)
    points: int
    exact: bool
    noise_is_known: bool = True
    halves: tuple[int, int] = (1, 1)  # points of each half
    population_factor: float = 0.0
    population: int | None = None

    def scaled(self, difference: Tensor) -> Tensor:
        """D = ½ (H_A − H_B) √(1 − M/n), with the covariance of H_M − H, computed from H_A − H_B."""
        # In units of one point's variance, ½ (H_A − H_B) has ¼ (1/a + 1/b), and H_M has (1 − M/n)/M.
        return difference * math.sqrt(self.population_factor / self.points / sum(1 / half for half in self.halves))


def frozen(source: Source, points: int) -> Frozen:
    """At least this many points of a source; all of them if a pass has no more."""
    return _of_batches(source, points) if isinstance(source, BatchSource) else _of_products(source)


def _of_products(source: Source) -> Frozen:
    """A source without data: its products must all be of one matrix."""
    v = torch.randn(source.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(source.like)
    first, again = source.matvec(v), source.matvec(v)
    noise, size = (float(torch.linalg.vector_norm(y)) for y in (first - again, first))
    if noise > REPEATS * torch.finfo(first.dtype).eps * size:
        raise ValueError(
            f"source: expected products that repeat, got two that differ by {noise / size:.1g} of their length; pass a source "
            "that reads batches (infhess.Hessian), a matrix, or a callable that holds its data fixed"
        )

    def apply(S: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        A, B = map(torch.zeros_like, _both(S, others))
        return torch.stack([source.matvec(s) for s in S.mT], 1), A, B

    return Frozen(apply, 0, exact=True)


def _of_batches(source: BatchSource, points: int) -> Frozen:
    """At least two batches if there are two; batches are not sliced, since their points may share statistics."""
    reading = FreshData(source.stream, source.draw, source.points_of, points, 1)
    batches: tuple[list[Batch], list[Batch]] = [], []
    for half, batch in reading.chunks(2, cut=False):
        batches[half].append(batch)
    source.stream.warn_of_order(reading.read)
    halves = [Graphs(source, half, MEMORY // 2) for half in batches if half]
    population_factor = 1.0 if source.forward_trace.random else reading.population_factor
    population = None if source.forward_trace.random else source.stream.population
    sizes = halves[0].points, halves[-1].points
    known = population_factor == 0 or len(halves) == 2
    return Frozen(
        _passes(source, halves),
        sum(h.points for h in halves),
        population_factor == 0,
        known,
        sizes,
        population_factor,
        population,
    )


def _passes(source: BatchSource, halves: list[Graphs]) -> Apply:
    M = sum(half.points for half in halves)

    def apply(S: Tensor, *others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        others = _both(S, others)
        Y, (A, B), V = torch.zeros_like(S), map(torch.zeros_like, others), S.shape[1]
        for half, R, found in zip(halves, others, (A, B)):
            for local, share in half:
                products = multiplied(source, local, torch.cat([S, R], 1))
                Y += half.points / M * share * products[:, :V]
                found += share * products[:, V:]
        return Y, A, B

    return apply


def _both(S: Tensor, others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Blocks for both halves; blocks that are not given have no columns."""
    return (*others, S[:, :0], S[:, :0])[:2]


class Whole:
    """All of the data, with as many graphs kept as memory allows: products without noise."""

    def __init__(self, source: BatchSource, graphs: Graphs) -> None:
        self._source, self._graphs, self.points = source, graphs, graphs.points

    def product(self, s: Tensor) -> Tensor:
        """The product of the full-data matrix with a vector."""
        y = torch.zeros_like(s)
        for local, share in self._graphs:
            y.add_(self._source.product(local, s), alpha=share)
        return y


def whole(source: Source, points: int, memory: int = MEMORY) -> Whole | None:
    """All of the data, if at least that many points are asked for; None if it exceeds `memory`, or if the loss is random."""
    population = source.stream.population if isinstance(source, BatchSource) else None
    if not isinstance(source, BatchSource) or population is None or points < population or source.forward_trace.random:
        return None
    reading = FreshData(source.stream, source.draw, source.points_of, population, 1)
    batches, left = list[Batch](), memory
    for _, batch in reading.chunks(1, cut=False):
        batches.append(batch)
        left -= sum(t.nbytes for t in tensors(batch))
        if left < 0:
            return None
    if reading.population_factor:
        return None
    if source.split:
        # Inputs and targets passed as if they were two batches fail here too.
        concat([slice_of(batch, 0, 1) for batch in batches[:FEW]])
    graphs = Graphs(source, batches, left)
    return None if source.forward_trace.random else Whole(source, graphs)
