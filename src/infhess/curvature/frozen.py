"""One sample of the data, held fixed: products with its matrix repeat, and so do products with its sampling error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.graphs import Graphs, multiplied
from infhess.curvature.reading import FreshData
from infhess.curvature.source import Source

# Products of one vector that differ by more than this many roundings are noisy.
REPEATS = 1e4

Apply = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Frozen:
    """The matrix H_M of M fixed points, and a matrix D that is distributed as its error H_M − H.

    D = ½ (H_A − H_B) √(1 − M/n) for the two halves of the sample: the same covariance as H_M − H. `apply` takes two blocks of
    columns and gives H_M S and D R from one pass over the data. `exact`: the sample is all of the data, and D = 0.
    """

    apply: Apply = field(repr=False)
    points: int
    exact: bool
    noise_is_known: bool = True


def frozen(source: Source, points: int) -> Frozen:
    """So many points of a source, at the least; all of them where a pass has no more."""
    return _of_batches(source, points) if isinstance(source, BatchSource) else _of_products(source)


def _of_products(source: Source) -> Frozen:
    """A source without data: its products are those of one matrix, or they are of no use here."""
    v = torch.randn(source.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(source.like)
    first, again = source.matvec(v), source.matvec(v)
    noise, size = (float(torch.linalg.vector_norm(y)) for y in (first - again, first))
    if noise > REPEATS * torch.finfo(first.dtype).eps * size:
        raise ValueError(
            f"source: expected products that repeat, got two that differ by {noise / size:.1g} of their length; pass a source "
            "that reads batches (infhess.Hessian), a matrix, or a callable that holds its data fixed"
        )

    def apply(S: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([source.matvec(s) for s in S.mT], 1), torch.zeros_like(R)

    return Frozen(apply, 0, exact=True)


def _of_batches(source: BatchSource, points: int) -> Frozen:
    """Whole batches, two at the least where there are two: none is cut, whatever its points share."""
    reading = FreshData(source.stream, source.draw, source.points_of, points, 1)
    halves = [(half, batch, source.seed()) for half, batch in reading.chunks(2, cut=False)]
    sizes = [sum(source.points_of(b) for h, b, _ in halves if h == half) for half in (0, 1)]
    source.stream.warn_of_order(reading.read)
    source.product(
        source.local(halves[0][1]), torch.ones(source.size).to(source.like)
    )  # shows whether the loss is random
    unread = 1.0 if source.watch.random else reading.unread
    return Frozen(_passes(source, halves, sizes, unread), sum(sizes), unread == 0, unread == 0 or min(sizes) > 0)


def _passes(source: BatchSource, halves: list[tuple[int, Batch, int]], sizes: list[int], unread: float) -> Apply:
    M = sum(sizes)
    # ¼ (1/a + 1/b) is the variance of ½ (H_A − H_B) in units of one point's, (1 − M/n)/M that of H_M.
    spread = math.sqrt(4 * max(unread, 0.0) / M / sum(1 / max(a, 1) for a in sizes)) / 2

    graphs = Graphs(source, [(batch, seed) for _, batch, seed in halves])

    def apply(S: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
        Y, D = torch.zeros_like(S), torch.zeros_like(R)
        for i, (half, batch, _) in enumerate(halves):
            n = source.points_of(batch)
            found = multiplied(source, graphs[i], torch.cat([S, R], 1))
            Y += n / M * found[:, : S.shape[1]]
            D += (spread if half == 0 else -spread) * n / sizes[half] * found[:, S.shape[1] :]
        return Y, D

    return apply
