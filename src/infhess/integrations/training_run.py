"""What callbacks do, whatever a framework calls its events: watch training passes, swap weights, give rows to loggers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from infhess.optim import Preconditioned, RateFree, Report
from infhess.optim.averaging.batch_norm import KEPT
from infhess.optim.reports import RateReport

Row = dict[str, float]
Ours = RateFree | Preconditioned


def unwrap(optimizer: Any) -> Any:
    """The optimizer itself, out of Accelerate's wrapper or Lightning's: `.optimizer`, as often as there is one."""
    while not isinstance(optimizer, Ours) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


class UnfinishedError(Exception):
    """A training pass that ended without a backward pass."""


class Run:
    """A training run with these optimizers, of which others than this library's are left alone.

    Args:
        optimizers: those of the framework, wrapped or not, as they are when it is asked.
        model: a model with BatchNorm needs `loss`, batch ↦ loss, which runs on the last batches again for the statistics at
            the averaged weights.
        loss: as said.
        again: what a second run of a closure is within, where curvature is a difference of gradients.
        sharpness: () ↦ row, logged `every` so many steps; 0 for never.
        every: as said.

    """

    def __init__(
        self,
        optimizers: Callable[[], Iterable[Any]],
        *,
        model: nn.Module | None = None,
        loss: Callable[[Any], Tensor] | None = None,
        again: Callable[[], AbstractContextManager[Any]] = nullcontext,
        sharpness: Callable[[], Row] = dict,
        every: int = 0,
    ) -> None:
        self._optimizers, self._model, self._loss, self._again = optimizers, model or nn.Module(), loss, again
        self._sharpness, self._every = sharpness, every
        self._pass: ExitStack | None = None
        self._recent: deque[Any] = deque(maxlen=KEPT)
        self._logged: dict[int, Report | RateReport] = {}
        self._step, self.micro_batches = 0, 0  # the last step, and since then
        self.running: dict[str, Tensor] = {}  # BatchNorm's statistics of training, while others stand in the model

    @property
    def ours(self) -> list[Ours]:
        """The optimizers of this library."""
        return [opt for opt in map(unwrap, self._optimizers()) if isinstance(opt, Ours)]

    @property
    def averaging(self) -> list[RateFree]:
        """Those that have averaged weights."""
        return [opt for opt in self.ours if isinstance(opt, RateFree)]

    # ---- training passes

    def watch(self) -> None:
        """Forward and backward pass of a micro-batch begin."""
        self.drop()
        with ExitStack() as stack:
            for opt in self.ours:
                stack.enter_context(opt.watch())
            self._pass = stack.pop_all()

    def watched(self) -> None:
        """The backward pass is done."""
        if self._pass is not None:
            done, self._pass = self._pass, None
            self.micro_batches += 1
            done.close()

    def drop(self) -> None:
        """There was none, or an error: as if nothing had been watched."""
        if self._pass is not None:
            done, self._pass = self._pass, None
            done.__exit__(UnfinishedError, UnfinishedError(), None)

    # ---- weights

    def train(self, batch: Any = None) -> None:
        """The weights that train, for this batch."""
        for opt in self.averaging:
            opt.around_second_run = self._again
            opt.train()
        for name, value in self.running.items():
            self._model.get_buffer(name).copy_(value)
        self.running = {}
        if norms(self._model):
            self._recent.append(batch)

    def eval(self) -> None:
        """The averaged weights, until training goes on."""
        self.running = self.running or running(self._model)
        for opt in self.averaging:
            opt.eval(*self._to_gather())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights within; `running` has the statistics that a checkpoint needs beside them."""
        before, self.running = self.running, self.running or running(self._model)
        with ExitStack() as stack:
            for opt in self.averaging:
                stack.enter_context(opt.averaged(*self._to_gather()))
            yield
        self.running = before

    def _to_gather(self) -> tuple[Any, ...]:
        return (self._loss, list(self._recent)) if self._recent else ()

    # ---- logs

    def stepped(self, step: int) -> Row:
        """After so many steps, what there is to log: curvature probes and sharpness, where this step is new."""
        self.drop()
        if step == self._step:
            return {}
        self._step, self.micro_batches = step, 0
        return self.probes() | (self._sharpness() if self._every and step % self._every == 0 else {})

    def probes(self) -> Row:
        """Of curvature probes since the last call: `curvature/rate` with its interval, the price, how many notes."""
        row: Row = {}
        for i, opt in enumerate(self.ours):
            if opt.report is not None and opt.report is not self._logged.get(i):
                self._logged[i] = opt.report
                row |= prefixed(f"curvature-{i}" if i else "curvature", opt.report.as_dict())
        return row

    @contextmanager
    def showing_rates(self) -> Iterator[None]:
        """Within: `lr` of each group is the learning rate in use, for who logs it."""
        given = [(group, group["lr"]) for opt in self.averaging for group in opt.param_groups]
        for opt in self.averaging:
            for group, used in zip(opt.param_groups, used_rates(opt)):
                group["lr"] = used
        try:
            yield
        finally:
            for group, lr in given:
                group["lr"] = lr


def used_rates(opt: RateFree) -> list[float]:
    """The learning rate of each group: what was found, times `lr`; 0 as long as nothing was."""
    found = opt.rate.value
    return [found * float(group["lr"]) if found > 0 else 0.0 for group in opt.param_groups]


def prefixed(prefix: str, row: Row) -> Row:
    """Names under a common one, as TensorBoard and W&B group them."""
    return {f"{prefix}/{name}": value for name, value in row.items()}


def norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """BatchNorm layers with running statistics, by name."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}
    return {name: norm for name, norm in found.items() if norm.running_mean is not None}


def running(model: nn.Module) -> dict[str, Tensor]:
    """These statistics as they stand."""
    named = [(name, norm.named_buffers(recurse=False)) for name, norm in norms(model).items()]
    return {f"{name}.{key}".lstrip("."): x.clone() for name, buffers in named for key, x in buffers}
