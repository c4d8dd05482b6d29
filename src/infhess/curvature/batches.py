"""Batches: any iterable of tensors or nested tuples, lists and dicts of them that share dimension 0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

Batch = Any


def tensors(batch: Batch) -> Iterator[Tensor]:
    """The tensors of a batch, depth first."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)


def mapped(f: Callable[[list[Tensor]], Tensor], batches: list[Batch]) -> Batch:
    """A batch of the same shape, each tensor made by f of those at its place; what is not a tensor is the first's."""
    first = batches[0]
    if isinstance(first, Tensor):
        return f(batches)
    if isinstance(first, dict):
        return type(first)({key: mapped(f, [b[key] for b in batches]) for key in first})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(mapped(f, list(parts)) for parts in zip(*batches)))
    if isinstance(first, list | tuple):
        return type(first)(mapped(f, list(parts)) for parts in zip(*batches))
    return first


def points(batch: Batch) -> int:
    """The number of data points: the size of dimension 0, which all tensors of the batch share."""
    sizes = {t.shape[0] if t.ndim else None for t in tensors(batch)}
    if len(sizes) != 1 or None in sizes:
        raise ValueError(
            f"batch: expected tensors that share dimension 0, got {_described(batch)}; "
            "wrap what is not data in the loss, and pass tensors"
        )
    size = sizes.pop()
    if not size:
        raise ValueError("batch: expected at least one data point, got an empty batch")
    return int(size)


def joined(batches: list[Batch]) -> Batch:
    """Several batches as one."""
    return batches[0] if len(batches) == 1 else mapped(torch.cat, batches)


def sliced(batch: Batch, pieces: int) -> list[Batch]:
    """A batch in `pieces` parts whose sizes differ by one at the most."""
    n = points(batch)
    cuts = [n * i // pieces for i in range(pieces + 1)]
    return [mapped(lambda ts, part=slice(a, b): ts[0][part], [batch]) for a, b in pairwise(cuts)]  # type: ignore[misc]


class Stream:
    """The next batch, and the next: an iterable that can be iterated again is, a one-shot iterator may run dry."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
            raise TypeError(
                f"batches: expected an iterable of batches, such as a DataLoader or a list, got {type(batches).__name__}"
            )
        self._batches = batches
        self._iterator = iter(batches)
        self._again = self._iterator is not batches

    def next(self) -> Batch:
        """The next batch; the first one again after the last, where that is possible."""
        batch = next(self._iterator, None)
        if batch is None and self._again:
            self._iterator = iter(self._batches)
            batch = next(self._iterator, None)
            if batch is None:
                raise ValueError("batches: expected at least one batch, got an empty iterable")
        if batch is None:
            raise ValueError(
                "batches: the iterator has run dry; pass something that can be iterated again (a DataLoader, a list), "
                "or an iterator with more batches"
            )
        return batch

    def population(self) -> int | None:
        """The number of data points there are in all, where it can be known without reading them."""
        dataset = getattr(self._batches, "dataset", None)
        if dataset is not None and hasattr(dataset, "__len__"):
            return len(dataset)
        if isinstance(self._batches, list | tuple):
            return sum(points(batch) for batch in self._batches)
        return None


def _described(batch: Batch) -> str:
    shapes = [tuple(t.shape) for t in tensors(batch)]
    return f"shapes {shapes}" if shapes else f"no tensor in a {type(batch).__name__}"
