"""Graphs of batches that are multiplied repeatedly: kept as far as memory allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from infhess.curvature.batch_curvature import BatchCurvature
from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch

MEMORY = 2**30  # bytes for graphs


class Bytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all outputs of operations, an upper bound on what their graph keeps."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unchanged, and count."""
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else (result,):
            if isinstance(value, Tensor):
                self.total += value.nbytes
        return result


class Graphs:
    """The curvature of some batches, for repeated products; building a graph costs as much as one to two products.

    Batches are not joined: a loss never sees more points at once than in a batch of its user.
    """

    def __init__(self, source: BatchSource, batches: Sequence[Batch], memory: int = MEMORY) -> None:
        self._source, self._left = source, memory
        self._kept: dict[int, BatchCurvature] = {}
        self._batches = [(batch, source.seed(), source.points_of(batch)) for batch in batches]
        self.points = sum(points for _, _, points in self._batches)
        first = self._built(0)
        first.gradient()  # a difference source inspects the loss only when it evaluates it
        source.note(first.forward_trace)

    def __iter__(self) -> Iterator[tuple[BatchCurvature, float]]:
        """The curvature of each batch, with its share of the points."""
        for i, (_, _, points) in enumerate(self._batches):
            yield self._kept.get(i) or self._built(i), points / self.points

    def _built(self, i: int) -> BatchCurvature:
        batch, seed, _ = self._batches[i]
        if not self._left:
            return self._source.local(batch, seed)
        with Bytes() as count:
            local = self._source.local(batch, seed)
        self._left = max(0, self._left - count.total)  # once memory is used up, no further graph is kept
        if self._left:
            self._kept[i] = local
        return local


def multiplied(source: BatchSource, local: BatchCurvature, S: Tensor) -> Tensor:
    """The products with the columns of S; a single column avoids the overhead of a block."""
    return source.product(local, S[:, 0])[:, None] if S.shape[1] == 1 else source.block(local, S)
