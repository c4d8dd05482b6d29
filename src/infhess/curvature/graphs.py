"""Graphs of batches that are multiplied again and again: kept as far as memory allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.local import Local

MEMORY = 2**28  # bytes of graphs


class Bytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what operations put out: no graph of theirs keeps more."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Everything as it is, and counted."""
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else (result,):
            if isinstance(value, Tensor):
                self.total += value.nbytes
        return result


class Graphs:
    """The curvature of each of some batches, with its seed. A graph costs as much as one to two products to build."""

    def __init__(self, source: BatchSource, batches: Sequence[tuple[Batch, int]], memory: int = MEMORY) -> None:
        self._source, self._batches, self._left = source, batches, memory
        self._kept: dict[int, Local] = {}

    def __getitem__(self, i: int) -> Local:
        """Of batch i."""
        return self._kept.get(i) or self._built(i)

    def _built(self, i: int) -> Local:
        batch, seed = self._batches[i]
        if not self._left:
            return self._at(batch, seed)
        with Bytes() as count:
            local = self._at(batch, seed)
        self._left = max(0, self._left - count.total)  # once there is no room, none is looked for any more
        if self._left:
            self._kept[i] = local
        return local

    def _at(self, batch: Batch, seed: int) -> Local:
        local = self._source.at(batch, seed)
        local.points = self._source.points_of(batch)
        return local


def multiplied(source: BatchSource, local: Local, S: Tensor) -> Tensor:
    """The products with the columns of S; a single one without the cost of a block."""
    return source.product(local, S[:, 0])[:, None] if S.shape[1] == 1 else source.block(local, S)
