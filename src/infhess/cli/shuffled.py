"""Mini-batches from tensors in memory as from a DataLoader, the objective of a batch, and torch's global seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]  # takes outputs and targets


class Shuffled:
    """Batches without replacement, epoch by epoch, as from a DataLoader with shuffling.

    Points that do not fill a batch wait for the next shuffle, unless all are wanted.
    """

    def __init__(self, dataset: Data, size: int, generator: torch.Generator, *, every: bool = False) -> None:
        self.population, self.size, self.generator = len(dataset[0]), min(size, len(dataset[0])), generator
        self._data, self._read = dataset, self.population if every else self.population // self.size * self.size

    def __iter__(self) -> Iterator[Data]:
        """One epoch."""
        x, y = self._data
        order = torch.randperm(len(x), generator=self.generator).to(x.device)
        for part in order[: self._read].split(self.size):  # type: ignore[no-untyped-call]
            yield x[part], y[part]

    def whole(self) -> Data:
        """All of the data at once."""
        return self._data


def objective(loss: Loss, model: nn.Module, l2: float) -> Callable[[Data], Tensor]:
    """Batch ↦ mean loss of the model, plus ½ l2 |w|²."""
    weights = list(model.parameters())

    def value(batch: Data) -> Tensor:
        penalty = torch.stack([w.square().sum() for w in weights]).sum() if l2 else 0.0
        return loss(model(batch[0]), batch[1]) + l2 / 2 * penalty

    return value


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the block torch's global generator starts from this seed; afterwards it is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
