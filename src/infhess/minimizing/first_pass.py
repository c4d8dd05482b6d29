"""The first pass: each batch goes into the reservoir, and the first one shows whether batches can be split and joined."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch.utils.data import DataLoader

from infhess.curvature.batches import Batch, size_of, slice_of, tensors
from infhess.minimizing.choice import Plan
from infhess.minimizing.objective import Objective, Value, additive
from infhess.minimizing.reservoir import Reservoir, is_sparse

NOT_FINITE = "loss: expected a finite number at the start, got NaN or infinity"
NO_MEAN = (
    "the loss of a batch is not the mean over its points: batches are kept as they come, and minimize has minimised the mean "
    "of their losses weighed by points, of which its loss and gap are; if it is a sum, divide it by the number of points"
)


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
            raise ValueError(f"{NOT_FINITE}; {fault(self.objective, [batch])}")
        return not is_sparse(batch) and (value.points < 2 or self._is_mean(batch, value))

    def _is_mean(self, batch: Batch, value: Value) -> bool:
        """Whether the loss is a mean over points."""
        n = value.points
        mean = additive(self.objective, slice_of(batch, 0, n // 2), slice_of(batch, n // 2, n), value)
        if not mean:
            self.reservoir.notes.append(NO_MEAN)
        return mean


def loader_notes(batches: Iterable[Batch]) -> list[str]:
    """A note if the loader leaves points out."""
    if isinstance(batches, DataLoader) and batches.drop_last and batches.batch_size:
        return ["the loader has drop_last=True: points that it drops are not in the loss that is minimised"]
    return []


def told(plan: Plan, reservoir: Reservoir) -> list[str]:
    """Notes on the chosen method and on what is kept."""
    costs = ", ".join(f"{name} {cost:.0f}" for name, cost in plan.costs.items())
    kept = "all the data" if reservoir.whole else f"a sample of {reservoir.kept:,} points"
    return [
        f"{plan.method} on a pool of {plan.pool:,} of {reservoir.points:,} points; predicted cost in passes: {costs}",
        f"{plan.steps} steps of sgd before it: more would cost more than they save",
        f"{kept} kept in memory: {reservoir.bytes_kept / 2**20:.1f} MiB",
    ]


def fault(objective: Objective, batches: Iterable[Batch]) -> str:
    """Which batch makes the loss not finite, and whether its data is to blame."""
    for number, batch in enumerate(batches, 1):
        if objective.at(batch, 0).loss < math.inf:
            continue
        n = size_of(batch)
        parts = [t.reshape(n, -1) for t in tensors(batch) if t.layout == torch.strided and t.ndim and len(t) == n]
        bad = sum((~torch.isfinite(t).all(1).cpu() for t in parts), torch.zeros(n, dtype=torch.bool))
        if bad.any():
            return (
                f"batch {number} has NaN or infinity in its data, at {int(bad.sum())} of its {n} points, the first at index "
                f"{int(bad.nonzero()[0])}: remove or fill in such values"
            )
        return f"the data of batch {number} is finite, but its loss is not, or overflows, at these weights: start elsewhere"
    return "no single batch shows it when it is read again: do the data or the loss change from pass to pass?"
