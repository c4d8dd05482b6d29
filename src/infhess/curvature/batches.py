"""Batches: tensors, or nested tuples, lists, mappings and dataclasses of tensors that share dimension 0."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from infhess._checks import count

Batch = Any
TOKENS = (torch.int32, torch.int64)  # what indices of tokens and classes are stored as
_END = object()
EMPTY = "batches: expected at least one batch, got an empty iterable, or one that has run dry"


def tensors(batch: Batch) -> Iterator[Tensor]:
    """The tensors of a batch, depth first."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)
    elif is_named(batch):
        for value in named(batch).values():
            yield from tensors(value)


def is_plain(batch: Batch) -> bool:
    """Whether a batch is made of tensors, numbers and text in tuples, lists and dicts: what `torch.load` reads by default."""
    if type(batch) in (list, tuple):
        return all(map(is_plain, batch))
    if type(batch) is dict:
        return all(type(key) in (str, int) and is_plain(value) for key, value in batch.items())
    return batch is None or type(batch) in (Tensor, bool, int, float, str)


def plain_map(f: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """A plain batch with each of its tensors replaced."""
    if isinstance(batch, list | tuple):
        return type(batch)(plain_map(f, value) for value in batch)
    if isinstance(batch, dict):
        return {key: plain_map(f, value) for key, value in batch.items()}
    return f(batch) if isinstance(batch, Tensor) else batch


def named(batch: Batch) -> dict[Any, Any]:
    """The entries of a mapping, or the fields of a dataclass."""
    if isinstance(batch, Mapping):
        return dict(batch.items())
    return {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}


def is_named(batch: Batch) -> bool:
    """Whether a batch is a mapping, such as a BatchEncoding, or an instance of a dataclass."""
    return isinstance(batch, Mapping) or (dataclasses.is_dataclass(batch) and not isinstance(batch, type))


def tree_map(f: Callable[[list[Any]], Any], batches: list[Batch], size: int) -> Batch:
    """A batch of the same structure, each leaf computed by f from the leaves at the same place in all batches.

    Leaves are tensors and lists with one entry per point that is not a tensor; anything else is taken from the first batch.
    """
    first = batches[0]
    if isinstance(first, Tensor) or (isinstance(first, list) and len(first) == size and not list(tensors(first))):
        return f(batches)
    if is_named(first):
        entries = [named(b) for b in batches]
        return _with(first, {key: tree_map(f, [e[key] for e in entries], size) for key in entries[0]})
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(tree_map(f, list(parts), size) for parts in zip(*batches)))
    if isinstance(first, list | tuple):
        return type(first)(tree_map(f, list(parts), size) for parts in zip(*batches))
    return first


def _with(batch: Batch, entries: dict[Any, Any]) -> Batch:
    """A copy with other entries; works for frozen dataclasses too, and does not run __init__ or __post_init__."""
    made = copy.copy(batch)
    for key, value in entries.items():
        if isinstance(made, Mapping):
            made[key] = value  # type: ignore[index]
        else:
            object.__setattr__(made, key, value)
    return made


def size_of(batch: Batch) -> int:
    """The number of data points: the size of dimension 0 that most tensors of the batch share.

    Other tensors are the same for all points: they have no dimension (a count) or size 1 in dimension 0 (position ids that
    broadcast). A pair of n inputs and 1 target is treated as a mistake, which it mostly is.
    """
    sizes = [t.shape[0] for t in tensors(batch) if t.ndim]
    if sizes and sizes.count(sizes[0]) == len(sizes) and sizes[0]:
        return sizes[0]
    size = max(set(sizes) - {1}, default=1)
    shared = sizes.count(1) if size > 1 else 0
    most = sizes.count(size) > shared or (sizes.count(size) == shared and is_named(batch))
    if not sizes or set(sizes) - {1, size} or not most:
        raise ValueError(
            f"batch: expected tensors that share dimension 0, got {_described(batch)}; "
            "wrap what is not data in the loss, and pass tensors"
        )
    if not size:
        raise ValueError("batch: expected at least one data point, got an empty batch")
    return size


def sizes_of(batch: Batch, points: int | None = None) -> tuple[int, int]:
    """The numbers of data points and of tokens; a number that is given stands for both.

    Tokens are the entries of the largest tensor of integers with a row per data point. Without one, each point is a token.

    >>> sizes_of({"input_ids": torch.zeros(4, 128, dtype=torch.long), "labels": torch.zeros(4, 128, dtype=torch.long)})
    (4, 512)
    >>> sizes_of((torch.zeros(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)))
    (4, 4)
    """
    if points is not None:
        return (count(points, "points"),) * 2
    number = size_of(batch)
    rows = [t.numel() for t in tensors(batch) if t.dtype in TOKENS and t.ndim and t.shape[0] == number]
    return number, max([number, *rows])


def sliced(batches: list[Batch], pieces: int) -> list[Batch]:
    """Join several batches and cut them into `pieces` slices whose sizes differ by at most one."""
    whole = concat(batches)
    n = size_of(whole)
    cuts = [n * i // pieces for i in range(pieces + 1)]
    return [slice_of(whole, a, b) for a, b in pairwise(cuts)]


def concat(batches: list[Batch]) -> Batch:
    """Several batches as one."""
    if len(batches) == 1:
        return batches[0]
    sizes = [size_of(b) for b in batches]

    def join(parts: list[Any]) -> Any:
        data = all(_is_data(part, n) for part, n in zip(parts, sizes))
        return _concatenated(parts) if data else _common(parts)

    return tree_map(join, batches, sizes[0])


def slice_of(batch: Batch, start: int, stop: int) -> Batch:
    """A slice of the points of a batch; what is shared by all points stays as it is."""
    n = size_of(batch)
    return tree_map(lambda leaf: leaf[0][start:stop] if _is_data(leaf[0], n) else leaf[0], [batch], n)


def _is_data(leaf: Any, size: int) -> bool:
    """Whether a leaf has an entry for each point."""
    return len(leaf) == size if isinstance(leaf, list) else leaf.ndim > 0 and len(leaf) == size


def _concatenated(parts: list[Any]) -> Any:
    if not isinstance(parts[0], Tensor):
        return [item for part in parts for item in part]
    try:
        return torch.cat(parts)
    except RuntimeError as error:
        shapes = [tuple(p.shape) for p in parts]
        raise ValueError(
            f"batches: expected tensors that differ in dimension 0 alone, got {shapes}; pass split=False for batches that "
            "cannot be joined, and [(x, y)] for a single batch"
        ) from error


def _common(parts: list[Any]) -> Any:
    """What is shared by all points, checked to be the same in all batches."""
    if any(not torch.equal(part, parts[0]) for part in parts):
        shown = [part.tolist() if part.ndim == 0 else tuple(part.shape) for part in parts]
        raise ValueError(
            f"batches: expected a tensor that is no data of single points to be the same in all batches, got {shown}; "
            "pass split=False for batches that cannot be joined"
        )
    return parts[0]


class Stream:
    """An endless stream of batches: an iterable is iterated again and again; a one-shot iterator may run dry.

    Attributes:
        ordered: whether a pass is known to follow the order of the data set, so that a part of it is not a random sample.
        passes: how often the iterable was started.

    """

    def __init__(
        self,
        batches: Iterable[Batch],
        points_of: Callable[[Batch], int] | None = None,
        sum_over_processes: Callable[[float], float] = float,
    ) -> None:
        if isinstance(batches, Tensor | Mapping | str | nn.Module) or not isinstance(batches, Iterable):
            raise TypeError(
                f"batches: expected an iterable of batches, such as a DataLoader or a list, got {type(batches).__name__}; "
                "a single batch is [batch]"
            )
        self._batches = batches
        self._iterator: Iterator[Batch] | None = None
        self._one_shot = isinstance(batches, Iterator)
        self._points_of, self._sum = points_of or size_of, sum_over_processes
        self.ordered = isinstance(batches, DataLoader) and _in_order(batches)
        self.passes, self._warned = 0, False

    @cached_property
    def population(self) -> int | None:
        """The data points of one pass, over all processes, if each point is known to come once per pass."""
        own = None if self._one_shot else population(self._batches, self._points_of)
        unknown, known = self._sum(float(own is None)), self._sum(own or 0)
        if not (unknown or known):
            raise ValueError(EMPTY)
        return None if unknown else round(known)

    def is_pass(self, number: int) -> bool:
        """Whether all processes are in the pass of this number."""
        return not self._sum(float(self.passes != number))

    def warn_of_order(self, read: int) -> None:
        """Warn once if a part of an ordered pass would be taken for a random sample."""
        if self.ordered and self.population is not None and read < self.population and not self._warned:
            self._warned = True
            warnings.warn(
                f"batches: a DataLoader that does not shuffle gave {read} of its {self.population} data points in order, which "
                "are no random sample if the data is sorted; pass shuffle=True for intervals that hold",
                stacklevel=2,
            )

    def restart(self) -> None:
        """Begin a new pass with the next batch, if possible."""
        if not self._one_shot:
            self._iterator = None

    def next(self) -> Batch:
        """The next batch; starts over after the last one, if possible."""
        batch = next(self._iterator, _END) if self._iterator is not None else _END
        if batch is _END and (self._iterator is None or not self._one_shot):
            self._iterator = iter(self._batches)
            self.passes += 1
            batch = next(self._iterator, _END)
            if batch is _END and not self._one_shot:
                raise ValueError(EMPTY)
        if batch is _END:
            raise ValueError(
                "batches: the iterator has run dry; pass something that can be iterated again (a DataLoader, a list), "
                "or an iterator with more batches"
            )
        return batch


def population(batches: Iterable[Batch], points_of: Callable[[Batch], int] = size_of) -> int | None:
    """The data points of one pass, each read once; None if that is not known without reading them."""
    if isinstance(batches, DataLoader):
        sampler = batches.sampler
        once = isinstance(sampler, DistributedSampler) or (
            isinstance(sampler, RandomSampler) and not sampler.replacement
        )
        once = once or _in_order(batches)
        return len(sampler) if once and batches.batch_size is not None else None  # type: ignore[arg-type]
    if isinstance(batches, list | tuple):
        return sum(map(points_of, batches))
    known = getattr(batches, "population", None)
    return known if isinstance(known, int) else None


def _in_order(batches: DataLoader[Any]) -> bool:
    """Whether a loader goes through its data set from the first point to the last."""
    sampler = batches.sampler
    ordered = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, DistributedSampler) and not sampler.shuffle
    )
    return ordered and batches.batch_size is not None


def _described(batch: Batch) -> str:
    shapes = [tuple(t.shape) for t in tensors(batch)]
    return f"shapes {shapes}" if shapes else f"no tensor in a {type(batch).__name__}"
