"""What callbacks share: `watch()` between two events, rows for loggers, the learning rate in use, methods put aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from infhess.optim import Preconditioned, RateFree, Report
from infhess.optim.reports import RateReport

Row = dict[str, float]
Ours = RateFree | Preconditioned


def ours(optimizers: Iterable[Any]) -> list[Ours]:
    """The optimizers of this library among others, out of whatever wraps them."""
    return [opt for opt in map(unwrap, optimizers) if isinstance(opt, Ours)]


def averaging(optimizers: Iterable[Any]) -> list[RateFree]:
    """Those of them that have averaged weights."""
    return [opt for opt in ours(optimizers) if isinstance(opt, RateFree)]


def unwrap(optimizer: Any) -> Any:
    """The optimizer itself, out of Accelerate's wrapper or Lightning's: `.optimizer`, as often as there is one."""
    while not isinstance(optimizer, Ours) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


class Unfinished(Exception):
    """A training pass that ended without a backward pass."""


class Watching:
    """`opt.watch()` from one event to another."""

    def __init__(self) -> None:
        self._within: ExitStack | None = None
        self.micro_batches = 0  # since the last step

    def begin(self, optimizers: Iterable[Any]) -> None:
        """Forward and backward pass of a micro-batch begin."""
        self.drop()
        with ExitStack() as stack:
            for opt in ours(optimizers):
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
    """What there is to log of optimizers: each report once."""

    def __init__(self) -> None:
        self._logged: dict[int, Report | RateReport] = {}

    def new(self, optimizers: Iterable[Any]) -> Row:
        """Of curvature probes since the last call: `curvature/rate` with its interval, the price, how many notes."""
        row: Row = {}
        for i, opt in enumerate(ours(optimizers)):
            if opt.report is not None and opt.report is not self._logged.get(i):
                self._logged[i] = opt.report
                row |= prefixed(f"curvature-{i}" if i else "curvature", opt.report.as_dict())
        return row


def prefixed(prefix: str, row: Row) -> Row:
    """Names under a common one, as TensorBoard and W&B group them."""
    return {f"{prefix}/{name}": value for name, value in row.items()}


def used_rates(opt: RateFree) -> list[float]:
    """The learning rate of each group: what was found, times `lr`; 0 as long as nothing was."""
    found = opt.rate.value
    return [found * float(group["lr"]) if found > 0 else 0.0 for group in opt.param_groups]


@contextmanager
def showing_rates(optimizers: Iterable[Any]) -> Iterator[None]:
    """Within: `lr` of each group is the learning rate in use, for who logs it."""
    groups = [(g, g["lr"], used) for opt in averaging(optimizers) for g, used in zip(opt.param_groups, used_rates(opt))]
    for group, _, used in groups:
        group["lr"] = used
    try:
        yield
    finally:
        for group, lr, _ in groups:
            group["lr"] = lr


class Replaced:
    """Methods of objects that run otherwise for a while."""

    def __init__(self) -> None:
        self._names: list[tuple[Any, str]] = []

    def around(self, owner: Any, names: Sequence[str], within: Callable[..., AbstractContextManager[Any]]) -> None:
        """Each of these methods runs within a context that is made of its arguments."""
        for name in names:
            vars(owner)[name] = _around(getattr(owner, name), within)
            self._names.append((owner, name))

    def undo(self) -> None:
        """As they were."""
        for owner, name in self._names:
            vars(owner).pop(name, None)
        self._names = []


def _around(method: Callable[..., Any], within: Callable[..., AbstractContextManager[Any]]) -> Callable[..., Any]:
    def replaced(*args: Any, **kwargs: Any) -> Any:
        with within(*args, **kwargs):
            return method(*args, **kwargs)

    return replaced
