"""The first pass: each batch goes into the reservoir, and the first one shows whether batches can be split and joined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from torch.utils.data import DataLoader

from infhess.curvature.batches import Batch, slice_of
from infhess.minimizing.objective import Objective, Value, additive
from infhess.minimizing.reservoir import Reservoir, is_sparse


class Reading:
    """Iterates over batches, and adds each to the reservoir."""

    def __init__(self, objective: Objective, reservoir: Reservoir, batches: Iterable[Batch]) -> None:
        self.objective, self.reservoir, self.batches = objective, reservoir, batches

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            if not self.reservoir.points:
                self.reservoir.cut = self._may_be_cut(batch)
            self.reservoir.add(batch)
            yield batch
        if not self.reservoir.points:
            raise ValueError("batches: expected at least one batch, got none")
        self.reservoir.settle()

    def _may_be_cut(self, batch: Batch) -> bool:
        value = self.objective.at(batch, 0)
        if not value.loss < math.inf:
            raise ValueError("loss: expected a finite number at the start, got NaN or infinity; start elsewhere")
        return not is_sparse(batch) and (value.points < 2 or self._is_mean(batch, value))

    def _is_mean(self, batch: Batch, value: Value) -> bool:
        """Whether the loss is a mean over points."""
        n = value.points
        mean = additive(self.objective, slice_of(batch, 0, n // 2), slice_of(batch, n // 2, n), value)
        if not mean:
            self.reservoir.notes.append(
                "the loss of a batch is not the mean over its points: batches are kept as they come, weighed by points"
            )
        return mean


def loader_notes(batches: Iterable[Batch]) -> list[str]:
    """A note if the loader leaves points out."""
    if isinstance(batches, DataLoader) and batches.drop_last and batches.batch_size:
        return ["the loader has drop_last=True: points that it drops are not in the loss that is minimised"]
    return []
