"""The micro-batches of a step, recorded by `observe` and `watch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from infhess._distributed import world_size
from infhess.curvature import batches as batching
from infhess.curvature.batch_source import BatchSource, Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.training_pass import TrainedHessian
from infhess.optim.checkpoint import Loss
from infhess.optim.rate.probe import MicroBatch, Probe


class Observed(NamedTuple):
    """A micro-batch of the coming step: the loss and batch given to `observe`, or a watched training pass."""

    loss: Loss | None  # None for a training pass
    batch: Batch
    points: int | None
    split: bool = False
    products: str = "exact"
    generator: torch.Generator | None = None

    @property
    def size(self) -> int:
        """Number of data points."""
        return batching.size_of(self.batch) if self.points is None else self.points

    def hessian(self, make: Callable[..., Hessian], seed: int) -> Hessian:
        """The curvature of the loss, with dropout masks from this seed."""
        masks = self.generator or torch.Generator().manual_seed(seed)
        options = {"split": self.split, "products": self.products, "points": self.points}
        return make(self.loss, [self.batch], generator=masks, **options)


def probe_of(
    seen: Sequence[Observed],
    params: Sequence[Tensor],
    make: Callable[..., Hessian],
    seed: int,
    failure: Exception | None,
) -> Probe:
    """A curvature probe of all micro-batches that have a loss or a graph; each has its own dropout masks."""
    pieces: list[MicroBatch] = []
    for o in seen if failure is None else ():
        if o.loss is not None or o.batch is not None:
            known: BatchSource | None = TrainedHessian(o.batch, o.size) if o.loss is None else None
            source = known or o.hessian(make, seed + len(pieces) * 2**32)
            pieces.append(MicroBatch(source, o.batch, keep=len(seen) == 1))
    return Probe(pieces, len(seen), params=[p for p in params if p.requires_grad], failure=failure)


def points_of(seen: Sequence[Observed]) -> tuple[int, Exception | None]:
    """Number of data points; with several processes an error is kept for the next probe, where all processes raise it."""
    try:
        return sum(o.size for o in seen), None
    except ValueError as error:
        if world_size() == 1:
            raise
        return 0, error


def concatenated(seen: Sequence[Observed]) -> Batch:
    """The micro-batches of a step as one batch; only the last one if they cannot be joined."""
    if len(seen) == 1 or not all(o.split and o.loss is seen[0].loss for o in seen):
        return seen[-1].batch
    try:
        return batching.concat([o.batch for o in seen])
    except (ValueError, AttributeError, KeyError):
        return seen[-1].batch


def beside(pool: Sequence[Batch], batch: Batch) -> list[Batch]:
    """Batches that wait for an estimate, on the device of the present one: a checkpoint may have brought them to another."""
    device = next((t.device for t in batching.tensors(batch)), None)
    return [batching.plain_map(lambda t: t.to(device), b) if batching.is_plain(b) else b for b in pool]
