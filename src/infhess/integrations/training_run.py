"""What the callbacks of all frameworks share: watch training passes, swap weights, provide rows to loggers."""

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
    """The optimizer itself, unwrapped from Accelerate's or Lightning's wrappers: follows `.optimizer`."""
    while not isinstance(optimizer, Ours) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


class UnfinishedError(Exception):
    """A training pass that ended without a backward pass."""


class Run:
    """A training run; optimizers that are not of this library are left alone.

    Args:
        optimizers: returns the framework's present optimizers, wrapped or not.
        model: a model with BatchNorm needs `loss`, batch ↦ loss, which runs again on the last batches for the statistics at the
            averaged weights.
        loss: see `model`.
        again: context for a second run of a closure, if curvature is a difference of gradients.
        sharpness: () ↦ row, logged every `every` steps; 0: never.
        every: see `sharpness`.

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
        self._step, self.micro_batches = 0, 0  # the last step, and micro-batches since
        self.running: dict[str, Tensor] = {}  # BatchNorm's training statistics, while the model holds others

    @property
    def ours(self) -> list[Ours]:
        """The optimizers of this library."""
        return [opt for opt in map(unwrap, self._optimizers()) if isinstance(opt, Ours)]

    @property
    def averaging(self) -> list[RateFree]:
        """Those with averaged weights."""
        return [opt for opt in self.ours if isinstance(opt, RateFree)]

    # ---- training passes

    def watch(self) -> None:
        """Begin to watch the forward and backward pass of a micro-batch."""
        self.drop()
        with ExitStack() as stack:
            for opt in self.ours:
                stack.enter_context(opt.watch())
            self._pass = stack.pop_all()

    def watched(self) -> None:
        """End the watch: the backward pass is done."""
        if self._pass is not None:
            done, self._pass = self._pass, None
            self.micro_batches += 1
            done.close()

    def drop(self) -> None:
        """Discard the watch: there was no backward pass, or an error."""
        if self._pass is not None:
            done, self._pass = self._pass, None
            done.__exit__(UnfinishedError, UnfinishedError(), None)

    # ---- weights

    def train(self, batch: Any = None) -> None:
        """Put in the training weights, for this batch."""
        for opt in self.averaging:
            opt.around_second_run = self._again
            opt.train()
        for name, value in self.running.items():
            self._model.get_buffer(name).copy_(value)
        self.running = {}
        if norms(self._model):
            self._recent.append(batch)

    def eval(self) -> None:
        """Put in the averaged weights, until training continues."""
        self.running = self.running or running(self._model)
        for opt in self.averaging:
            opt.eval(*self._to_gather())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within the context the model has the averaged weights; `running` has the statistics for a checkpoint."""
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
        """What to log after this many steps: curvature probes and sharpness, if this step is new."""
        self.drop()
        if step == self._step:
            return {}
        self._step, self.micro_batches = step, 0
        return self.probes() | (self._sharpness() if self._every and step % self._every == 0 else {})

    def probes(self) -> Row:
        """Curvature probes since the last call: `curvature/rate` with its interval, the cost, and the number of notes."""
        row: Row = {}
        for i, opt in enumerate(self.ours):
            if opt.report is not None and opt.report is not self._logged.get(i):
                self._logged[i] = opt.report
                row |= prefixed(f"curvature-{i}" if i else "curvature", opt.report.as_dict())
        return row

    @contextmanager
    def showing_rates(self) -> Iterator[None]:
        """Within the context, `lr` of each group is the learning rate in use, for loggers."""
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
    """The learning rate of each group, in proportion to its `lr`; 0 until there is one."""
    used, factors = opt.rate.value, [float(group["lr"]) for group in opt.param_groups]
    return [used * (factor / max(factors)) if used > 0 else 0.0 for factor in factors]


def prefixed(prefix: str, row: Row) -> Row:
    """Add a common prefix to names, as TensorBoard and W&B group them."""
    return {f"{prefix}/{name}": value for name, value in row.items()}


def norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """BatchNorm layers with running statistics, by name."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}
    return {name: norm for name, norm in found.items() if norm.running_mean is not None}


def running(model: nn.Module) -> dict[str, Tensor]:
    """Copies of their present statistics."""
    named = [(name, norm.named_buffers(recurse=False)) for name, norm in norms(model).items()]
    return {f"{name}.{key}".lstrip("."): x.clone() for name, buffers in named for key, x in buffers}
