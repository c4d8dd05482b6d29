"""Full precision for our own algebra, whatever autocast the caller has turned on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import GeneratorType
from typing import Any, ParamSpec, TypeVar

import torch

DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia", "maia")

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(f: Callable[P, R]) -> Callable[P, R]:
    """f with autocast off while it runs, for every public entry. A loss that wants autocast opens it inside of itself.

    A generator that f gives runs without autocast too; between its steps, in the caller's body, autocast is the caller's.
    """

    @wraps(f)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        result = _without_autocast(f, *args, **kwargs) if _any_on() else f(*args, **kwargs)
        return _stepwise(result) if isinstance(result, GeneratorType) else result  # type: ignore[return-value]

    guarded.full_precision = True  # type: ignore[attr-defined]
    return guarded


def full_precision_step(step: Callable[P, R]) -> Callable[P, R]:
    """The same for `step(closure)`; the closure, training's own forward and backward pass, keeps the caller's autocast."""

    @wraps(step)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _any_on():
            return step(*args, **kwargs)
        kept = partial(_with_autocast, _autocasts())
        return _without_autocast(step, *map(kept, args), **{name: kept(value) for name, value in kwargs.items()})

    guarded.full_precision = True  # type: ignore[attr-defined]
    return guarded


def _any_on() -> bool:
    """A fraction of a microsecond, for hot loops; older versions of PyTorch leave MPS out of the first."""
    return torch._C._is_any_autocast_enabled() or torch.is_autocast_enabled("mps")


def _without_autocast(f: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    with autocast_off():
        return f(*args, **kwargs)


@contextmanager
def autocast_off() -> Iterator[None]:
    """Within: no autocast, on any device."""
    with ExitStack() as stack:
        for device, _, _ in _autocasts():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _autocasts() -> list[tuple[str, torch.dtype, bool]]:
    """Device, dtype and use of the cache of each autocast that is on."""
    if not _any_on():
        return []
    on = [device for device in (*DEVICES, torch._C._get_privateuse1_backend_name()) if _is_on(device)]
    return [(device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()) for device in on]


def _is_on(device: str) -> bool:
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # a device that this PyTorch has no autocast for
        return False


def _with_autocast(autocasts: list[tuple[str, torch.dtype, bool]], argument: Any) -> Any:
    """A closure that runs under these autocasts; any other argument as it is."""
    if not callable(argument) or isinstance(argument, torch.optim.Optimizer):
        return argument

    @wraps(argument)
    def kept() -> Any:
        with ExitStack() as stack:
            for device, dtype, cache in autocasts:
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=cache))
            return argument()

    return kept


def _stepwise(generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The same generator with autocast off in its steps: at a yield it is as the caller left it."""
    step = partial(next, generator)
    while True:
        try:
            item = _without_autocast(step)
        except StopIteration as end:
            return end.value
        try:
            sent = yield item
            step = partial(generator.send, sent)
        except GeneratorExit:
            _without_autocast(generator.close)
            raise
        except BaseException as error:
            step = partial(generator.throw, error)
