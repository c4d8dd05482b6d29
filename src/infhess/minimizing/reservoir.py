"""A random sample of the data from one pass: the points with the smallest of independent random keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from infhess.curvature.batches import Batch, concat, size_of, tensors, tree_map

# Points of a chunk: batches are joined to this size, so that Python's overhead in a pass is small.
CHUNK = 4096
# Least points of a sample, however little memory there is: one point says nothing about curvature.
LEAST = 32


class Reservoir:
    """Points with the smallest keys (bottom-k sampling, Cohen & Kaplan 2007): a sample without replacement.

    It keeps everything until that takes more than `memory` bytes, and then a sample of `capacity` points.

    Attributes:
        points, kept: data points seen, and how many of them are kept.
        whole: whether all points are kept.
        cut: whether batches may be split and joined; otherwise they are kept or dropped whole.

    """

    def __init__(self, memory: float, capacity: int, generator: torch.Generator) -> None:
        self.memory, self.capacity, self.cut, self._generator = memory, capacity, True, generator
        self.notes: list[str] = []
        self.points, self.kept, self.whole, self.bytes = 0, 0, True, 0
        self._parts: list[tuple[Tensor, Batch]] = []  # keys and points

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        n = size_of(batch)
        keys = torch.rand(n if self.cut else 1, generator=self._generator, dtype=torch.float64).expand(n)
        self._parts.append((keys, batch))
        self.points, self.kept, self.bytes = self.points + n, self.kept + n, self.bytes + bytes_of(batch)
        if self.whole and self.bytes > self.memory:
            # A sample must not take more memory than all of the data may.
            self.capacity = max(LEAST, min(self.capacity, int(self.points * self.memory / self.bytes / 2)))
            self.whole = False
        if not self.whole and self.kept > 2 * self.capacity:
            self._prune()

    def _prune(self) -> None:
        limit = self._key(self.capacity)
        masks = [(keys <= limit, keys, batch) for keys, batch in self._parts]
        self._parts = [(keys[m], _picked(batch, m, self.cut)) for m, keys, batch in masks if bool(m.any())]
        self.kept = sum(len(keys) for keys, _ in self._parts)

    def _key(self, rank: int) -> float:
        """The key of this rank, counted from 1; above all keys if there are fewer."""
        keys = torch.cat([keys for keys, _ in self._parts])
        return 1.0 if rank >= len(keys) else float(keys.kthvalue(rank).values) if rank else -1.0

    def between(self, first: int, last: int) -> list[Batch]:
        """Points whose keys have ranks from first (exclusive) to last, in chunks: disjoint ranges are independent samples."""
        low, high = self._key(first), self._key(last)
        parts = [(_within(keys, low, high), batch) for keys, batch in self._parts]
        chosen = [_picked(batch, mask, self.cut) for mask, batch in parts if bool(mask.any())]
        return list(in_chunks(chosen, self.cut))

    def shuffled(self, first: int, last: int) -> list[Batch]:
        """The same points in random order: one batch, or whole batches if these may not be split."""
        low, high = self._key(first), self._key(last)
        parts = sorted(self._parts, key=lambda part: 0.0 if self.cut else float(part[0][0]))
        masks = [(_within(keys, low, high), keys, batch) for keys, batch in parts]
        chosen = [_picked(batch, mask, self.cut) for mask, _, batch in masks if bool(mask.any())]
        if not self.cut:
            return chosen
        return [_indexed(concat(chosen), torch.cat([keys[mask] for mask, keys, _ in masks]).argsort())]

    def settle(self) -> None:
        """Join what is kept into chunks, once the pass is over."""
        if not self.whole:
            self._prune()
        if self.cut:
            self._join()

    def _join(self) -> None:
        try:
            chunks = list(self.chunks())
        except ValueError as error:
            self.cut = False
            self.notes.append(f"batches are kept as they come, since they cannot be joined: {error}")
            self._parts = [(keys[:1].expand(len(keys)), batch) for keys, batch in self._parts]
            return
        keys = torch.cat([keys for keys, _ in self._parts])
        self._parts = list(zip(torch.split(keys, [size_of(c) for c in chunks]), chunks))

    @property
    def bytes_kept(self) -> int:
        """Memory of the kept points."""
        return sum(bytes_of(batch) for _, batch in self._parts)

    def chunks(self) -> Iterator[Batch]:
        """All kept points, in chunks."""
        return in_chunks([batch for _, batch in self._parts], self.cut)


def _within(keys: Tensor, low: float, high: float) -> Tensor:
    return (keys > low) & (keys <= high)


def _picked(batch: Batch, mask: Tensor, cut: bool) -> Batch:
    """The points of a batch where the mask is true; all of them if it may not be split."""
    if not cut or bool(mask.all()):
        return batch
    return _indexed(batch, mask.nonzero()[:, 0])


def _indexed(batch: Batch, index: Tensor) -> Batch:
    """The points with these indices."""
    n = size_of(batch)

    def pick(leaf: object) -> object:
        if isinstance(leaf, list):
            return [leaf[i] for i in index.tolist()] if len(leaf) == n else leaf
        assert isinstance(leaf, Tensor)
        return leaf[index.to(leaf.device)] if leaf.ndim and len(leaf) == n else leaf

    return tree_map(lambda leaves: pick(leaves[0]), [batch], n)


def in_chunks(batches: Iterable[Batch], cut: bool) -> Iterator[Batch]:
    """The same points, with batches joined to at least CHUNK points."""
    waiting: list[Batch] = []
    points = 0
    for batch in batches:
        if not cut:
            yield batch
            continue
        waiting.append(batch)
        points += size_of(batch)
        if points >= CHUNK:
            yield concat(waiting)
            waiting, points = [], 0
    if waiting:
        yield concat(waiting)


def bytes_of(batch: Batch) -> int:
    """Bytes of the tensors of a batch; for sparse ones, of their values and indices."""
    return sum(_bytes(t) for t in tensors(batch))


def _bytes(t: Tensor) -> int:
    if t.layout == torch.strided:
        return t.numel() * t.element_size()
    return int(t._nnz()) * (t.element_size() + 8 * t.ndim)


def is_sparse(batch: Batch) -> bool:
    """Whether a batch holds sparse tensors, whose rows torch cannot slice."""
    return any(t.layout != torch.strided for t in tensors(batch))
