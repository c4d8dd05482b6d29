"""The micro-batches of a step, as `observe` and `watch` have seen them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from infhess._distributed import world_size
from infhess.curvature import batches as batching
from infhess.curvature.batches import Batch


class Observed(NamedTuple):
    """A micro-batch of the coming step: the loss and batch given to `observe`, or a training pass that was watched."""

    loss: Callable[[Batch], Tensor] | None
    batch: Batch
    points: int | None
    split: bool = False
    products: str = "exact"
    generator: torch.Generator | None = None

    @property
    def size(self) -> int:
        """Data points."""
        return batching.size_of(self.batch) if self.points is None else self.points


def sized(seen: list[Observed]) -> tuple[Exception | None, int]:
    """Data points; where there are other processes an error waits for the next probe, at which all agree on it."""
    try:
        return None, sum(o.size for o in seen)
    except ValueError as error:
        if world_size() == 1:
            raise
        return error, 0


def together(seen: list[Observed]) -> Batch:
    """The micro-batches of a step as one batch; the last one where they cannot be joined."""
    if len(seen) == 1 or not all(o.split and o.loss is seen[0].loss for o in seen):
        return seen[-1].batch
    try:
        return batching.joined([o.batch for o in seen])
    except (ValueError, AttributeError, KeyError):
        return seen[-1].batch
