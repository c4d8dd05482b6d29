"""Sharpness while a net trains: the largest eigenvalues of its Hessian, on separate batches from a data loader's data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from infhess.curvature import Hessian
from infhess.integrations.training_run import Row, prefixed
from infhess.spectra import Spectrum, spectrum


def sharpness(
    loss: Callable[[Any], Tensor], params: Iterable[Tensor], loader: Any, batch_size: int, k: int, *, step: int
) -> Row:
    """The k largest eigenvalues of the Hessian at the present weights, on fresh batches of a loader's data set.

    Training is not disturbed: neither the position of its loader nor the random state changes.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        batches = shuffled(loader, batch_size, torch.Generator().manual_seed(step))
        live = [p for p in params if p.requires_grad]
        found = spectrum(Hessian(loss, live, batches), min(k, sum(p.numel() for p in live)))
        return prefixed("sharpness", spectrum_row(found))


def spectrum_row(found: Spectrum) -> Row:
    """Eigenvalues with 95 % intervals, by name: `value/1`, `low/1`, `high/1`, `value/2`, …; and the cost."""
    row = {"products": float(found.products), "data_points": float(found.data_points)}
    for i, (value, low, high) in enumerate(zip(found.values.tolist(), *(x.tolist() for x in found.interval())), 1):
        row |= {f"value/{i}": value, f"low/{i}": low, f"high/{i}": high}
    return row


def shuffled(loader: Any, batch_size: int, generator: torch.Generator) -> DataLoader[Any]:
    """A separate loader for the same data, with its own order."""
    data, sampler = loader.dataset, loader.sampler
    if not isinstance(sampler, DistributedSampler):  # which has its own order, and a part of the data per process
        sampler = None if isinstance(data, IterableDataset) else RandomSampler(data, generator=generator)
    return DataLoader(data, batch_size, sampler=sampler, collate_fn=loader.collate_fn, generator=generator)
