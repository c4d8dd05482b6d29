"""Mini-batches as a DataLoader with shuffling gives them, from tensors in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class Shuffled:
    """Batches without replacement, an epoch after the other, as a DataLoader with shuffling gives them."""

    def __init__(self, dataset: tuple[Tensor, Tensor], size: int, generator: torch.Generator) -> None:
        self.population, self.size, self.generator = len(dataset[0]), min(size, len(dataset[0])), generator
        self._data = dataset

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch; points that do not fill a batch wait for the next shuffle."""
        x, y = self._data
        order = torch.randperm(len(x), generator=self.generator).to(x.device)
        for i in range(0, len(x) - self.size + 1, self.size):
            part = order[i : i + self.size]
            yield x[part], y[part]

    def whole(self) -> tuple[Tensor, Tensor]:
        """All of the data at once."""
        return self._data


class Reading:
    """An endless stream of batches that counts the data points read from it; `budget` is how many there are to be."""

    def __init__(self, batches: Shuffled, budget: int = 0) -> None:
        self.points, self.size, self.population, self.budget = 0, batches.size, batches.population, budget
        self._batches, self._epoch = batches, iter(batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Itself: what is read by one hand is gone for the other."""
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        """The next batch."""
        batch = next(self._epoch, None)
        if batch is None:
            self._epoch = iter(self._batches)
            batch = next(self._epoch)
        self.points += len(batch[0])
        return batch

    def epoch(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over all the data, in batches of about a thousand points, which are counted too."""
        x, y = self._batches.whole()
        self.points += len(x)
        yield from zip(x.split(1024), y.split(1024))  # type: ignore[no-untyped-call]
