"""Products over fresh data: chunks with their weights, and which share of all data is left unread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batches import Batch


class ChunkedProducts(NamedTuple):
    """Products of k vectors with C chunks of fresh data.

    products (C, k, N); weights (C,), the share of the points in each chunk; population_factor, the variance factor 1 − M/n for
    a sample without replacement from a finite population, or 1 if n is not known.
    """

    products: Tensor
    weights: Tensor
    population_factor: float

    @property
    def noise_is_known(self) -> bool:
        """Whether the noise is known: there are at least two chunks, or there is no noise since all data was read."""
        return len(self.weights) > 1 or self.population_factor == 0


class Question(NamedTuple):
    """A vector to multiply, computed lazily, and what to take from its product: `width` numbers."""

    vector: Callable[[], Tensor]
    take: Callable[[Tensor], Tensor]
    width: int


class DrawnBatch(NamedTuple):
    """A batch, the chunk that it belongs to, and the seed of its dropout."""

    chunk: int
    batch: Batch
    seed: int


class Sums:
    """Answers to several questions, accumulated over the points of each chunk."""

    def __init__(self, like: Tensor, chunks: int, widths: Sequence[int]) -> None:
        self._sums = [like.new_zeros(chunks, 1, width) for width in widths]
        self._sizes = torch.zeros(chunks, dtype=torch.float64)

    def add(self, chunk: int, points: int, answers: Iterable[Tensor]) -> None:
        """Add the answers of one batch of a chunk, with its number of points."""
        for total, answer in zip(self._sums, answers):
            total[chunk, 0].add_(answer, alpha=points)
        self._sizes[chunk] += points

    def draws(self, population_factor: float) -> list[ChunkedProducts]:
        """The means over those chunks that were read."""
        read, sums = self._sizes > 0, self._sums
        if not bool(read.all()):
            sums = [total[read.to(total.device)] for total in sums]
        sizes = self._sizes[read].to(sums[0].device)
        # In place: the sums may be as large as several copies of the parameters.
        return [
            ChunkedProducts(total.div_(sizes[:, None, None].to(total)), sizes / sizes.sum(), population_factor)
            for total in sums
        ]


def even(products: list[list[Tensor]], population_factor: float = 1.0) -> ChunkedProducts:
    """Chunks of equal weight; from an infinite population by default."""
    C = len(products)
    return ChunkedProducts(
        torch.stack([torch.stack(ps) for ps in products]),
        torch.full((C,), 1 / C, dtype=torch.float64),
        population_factor,
    )
