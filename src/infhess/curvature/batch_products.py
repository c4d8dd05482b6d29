"""Batches drawn one after the other, and products with their matrices; both are counted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from infhess._checks import generator_on
from infhess._distributed import all_reduce_sum, rank, world_size
from infhess._precision import full_precision
from infhess.curvature.batch_curvature import BatchCurvature
from infhess.curvature.batches import Batch, Stream, size_of
from infhess.curvature.flat import Flat, Params
from infhess.curvature.no_side_effects import ForwardTrace
from infhess.curvature.pooled import PooledBatch, failed_somewhere
from infhess.curvature.source import Source

# Inspecting modules takes as long as a small net's forward pass: one batch without side effects vouches for this many more.
UNSEEN = 31


class BatchProducts(Source):
    """Counts the batches drawn and the products computed by a source of mini-batches, and remembers properties of the loss."""

    pooled = True

    def __init__(
        self, params: Params, batches: Iterable[Batch], split: bool, generator: torch.Generator | None
    ) -> None:
        generator_on(generator)
        if not isinstance(split, bool):
            raise TypeError(f"split: expected True or False, got {split!r}")
        self.flat, self.split = Flat(params), split
        self.stream = Stream(batches, self._own_points, self._sum)
        self.size, self.like = self.flat.size, self.flat.like
        self._generator = generator or torch.Generator().manual_seed(0)
        self.forward_trace = ForwardTrace()  # what was seen of the loss so far
        self.product_points = 0  # data points in all products, counted each time
        self._plain = 0  # coming batches that are not checked for side effects

    @abstractmethod
    def at(self, batch: Batch, seed: int) -> BatchCurvature:
        """The curvature of one batch."""

    @property
    def _in_several(self) -> bool:
        """Whether this source is pooled with those of other processes."""
        return self.pooled and world_size() > 1

    def _sum(self, value: float) -> float:
        """Sum over the pooled processes."""
        return all_reduce_sum([value], self.flat.device)[0] if self._in_several else value

    def draw(self) -> Batch:
        """The next batch, counted; with several processes, each draws its own."""
        batch: Batch = None
        failure: Exception | None = None
        try:
            batch = self.stream.next()
        except ValueError as error:
            failure = error
        if self._in_several:
            failure = failed_somewhere(failure, self.flat.device)
        if failure is not None:
            raise failure
        self.data_points += self.points_of(batch)
        return batch

    def points_of(self, batch: Batch) -> int:
        """The number of data points of a batch; with several processes, the sum over their batches."""
        return round(self._sum(self._own_points(batch)))

    def _own_points(self, batch: Batch) -> int:
        return self._points or size_of(batch)

    @full_precision
    def local(self, batch: Batch, seed: int | None = None) -> BatchCurvature:
        """The curvature of one batch, with its own seed for dropout."""
        seed = self.seed() if seed is None else seed
        if self._in_several:
            return PooledBatch(self.at(batch, seed + rank()), self._own_points(batch))
        local = self.at(batch, seed)
        local.points = self.points_of(batch)
        return local

    def seed(self) -> int:
        """A seed for the dropout of a batch."""
        return int(torch.randint(2**62, (), generator=self._generator))

    @full_precision
    def product(self, local: BatchCurvature, s: Tensor) -> Tensor:
        """A product with the matrix of one batch, counted."""
        y = local.product(s)
        self._count(local, 1)
        return y

    @full_precision
    def products_of(self, local: BatchCurvature, vectors: Sequence[Tensor]) -> list[Tensor]:
        """A product with the matrix of one batch, parameter by parameter, counted."""
        found = local.along(vectors)
        self._count(local, 1)
        return found

    @full_precision
    def block(self, local: BatchCurvature, S: Tensor) -> Tensor:
        """Products with the matrix of one batch and each column of S, counted."""
        Y = local.block(S)
        self._count(local, S.shape[1])
        return Y

    def _count(self, local: BatchCurvature, products: int) -> None:
        self.count_products(products, local.points)
        self.note(local.forward_trace)
        self._plain = UNSEEN if local.plain else self._plain

    def note(self, seen: ForwardTrace) -> None:
        """Remember what a batch has shown about the loss."""
        self.forward_trace.random |= seen.random
        self.forward_trace.batch_statistics |= seen.batch_statistics

    def count_products(self, products: int, points: int) -> None:
        """Count products with this many points each."""
        self.products += products
        self.product_points += products * points
