"""What callbacks share: a `watch()` whose begin and end are two events, sharpness on fresh batches, and rows for loggers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from infhess.curvature import Hessian
from infhess.optim import Preconditioned, RateFree, Report
from infhess.optim.reports import RateReport
from infhess.spectra import Spectrum, spectrum

Row = dict[str, float]


class Unfinished(Exception):
    """A training pass that ended without a backward pass."""


class Watching:
    """`opt.watch()` from one event to another."""

    def __init__(self) -> None:
        self._within: ExitStack | None = None
        self.micro_batches = 0  # since the last step

    def begin(self, optimizers: Iterable[RateFree | Preconditioned]) -> None:
        """Forward and backward pass of a micro-batch begin."""
        with ExitStack() as stack:
            for opt in optimizers:
                stack.enter_context(opt.watch())
            self._within = stack.pop_all()

    def end(self) -> None:
        """The backward pass is done."""
        if self._within is not None:
            within, self._within = self._within, None
            self.micro_batches += 1
            within.close()

    def drop(self) -> None:
        """There was none, or an error: as if nothing had been watched."""
        if self._within is not None:
            within, self._within = self._within, None
            within.__exit__(Unfinished, Unfinished(), None)


class Rows:
    """What there is to log of optimizers: each report once, and the learning rate in use."""

    def __init__(self) -> None:
        self._logged: dict[int, Report | RateReport] = {}

    def new(self, optimizers: Sequence[RateFree | Preconditioned]) -> Row:
        """Of curvature probes since the last call: `curvature/rate` with its interval, the price, how many notes."""
        row: Row = {}
        for i, opt in enumerate(optimizers):
            if opt.report is not None and opt.report is not self._logged.get(i):
                self._logged[i] = opt.report
                row |= prefixed(_named("curvature", i), opt.report.as_dict())
        return row

    def used(self, optimizers: Sequence[RateFree | Preconditioned]) -> Row:
        """`lr-RateFree-used`: the learning rate found times `lr`, of the first group."""
        return {
            _named("lr-RateFree-used", i): opt.rate.value * float(opt.param_groups[0]["lr"])
            for i, opt in enumerate(optimizers)
            if isinstance(opt, RateFree)
        }


def _named(name: str, i: int) -> str:
    return f"{name}-{i}" if i else name


def prefixed(prefix: str, row: Row) -> Row:
    """Names under a common one, as TensorBoard and W&B group them."""
    return {f"{prefix}/{name}": value for name, value in row.items()}


def spectrum_row(found: Spectrum) -> Row:
    """Eigenvalues with their 95 % intervals, by name: `value/1`, `low/1`, `high/1`, `value/2`, …; and the price."""
    row = {"products": float(found.products), "data_points": float(found.data_points)}
    for i, (value, low, high) in enumerate(zip(found.values.tolist(), *(x.tolist() for x in found.interval())), 1):
        row |= {f"value/{i}": value, f"low/{i}": low, f"high/{i}": high}
    return row


def sharpness(
    loss: Callable[[Any], Tensor], params: Iterable[Tensor], loader: Any, batch_size: int, k: int, *, step: int
) -> Row:
    """The k largest eigenvalues of the Hessian at the present weights, on fresh batches of a loader's data set.

    Training is not disturbed: neither its loader, which goes on where it is, nor the random state.
    """
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices):
        batches = shuffled(loader, batch_size, torch.Generator().manual_seed(step))
        live = [p for p in params if p.requires_grad]
        return prefixed("sharpness", spectrum_row(spectrum(Hessian(loss, live, batches), min(k, _size(live)))))


def _size(params: Iterable[Tensor]) -> int:
    return sum(p.numel() for p in params)


def shuffled(loader: Any, batch_size: int, generator: torch.Generator) -> DataLoader[Any]:
    """A loader of its own for the same data, in an order of its own."""
    data, sampler = loader.dataset, loader.sampler
    if not isinstance(
        sampler, DistributedSampler
    ):  # which is in an order of its own, and one part of the data a process
        sampler = None if isinstance(data, IterableDataset) else RandomSampler(data, generator=generator)
    return DataLoader(data, batch_size, sampler=sampler, collate_fn=loader.collate_fn, generator=generator)


def ours(optimizers: Iterable[Any]) -> Iterator[RateFree | Preconditioned]:
    """The optimizers of this library among others, out of whatever wraps them."""
    for opt in optimizers:
        inner = unwrap(opt)
        if isinstance(inner, RateFree | Preconditioned):
            yield inner


def unwrap(optimizer: Any) -> Any:
    """The optimizer itself, out of Accelerate's wrapper or Lightning's: `.optimizer`, as often as there is one."""
    while not isinstance(optimizer, RateFree | Preconditioned) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
