"""Streams of mini-batches that count what is read, and closures for optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from infhess.cli.shuffled import Data, Loss, Shuffled, objective, seeded

__all__ = ["CountedStream", "Data", "Loss", "Shuffled", "closure", "objective", "seeded"]


class CountedStream:
    """An endless stream of batches that counts the data points read; `budget` is how many a run may read."""

    def __init__(self, batches: Shuffled, budget: int = 0) -> None:
        self.points, self.size, self.population, self.budget = 0, batches.size, batches.population, budget
        self._batches, self._epoch = batches, iter(batches)

    def __iter__(self) -> Iterator[Data]:
        """The stream itself: each batch is read once."""
        return self

    def __next__(self) -> Data:
        """The next batch."""
        batch = next(self._epoch, None)
        if batch is None:
            self._epoch = iter(self._batches)
            batch = next(self._epoch)
        self.points += len(batch[0])
        return batch

    def epoch(self) -> Iterator[Data]:
        """One pass over all the data, in batches of about a thousand points, which are counted too."""
        x, y = self._batches.whole()
        self.points += len(x)
        yield from zip(x.split(1024), y.split(1024))  # type: ignore[no-untyped-call]


def closure(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """What `step` of an optimizer takes: zero the gradients, and compute the loss and its gradients."""

    def evaluated() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    return evaluated
