"""Full precision for the library's own algebra, whatever autocast the caller has turned on."""

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
    """f with autocast off while it runs, for every public entry point. A loss that wants autocast enters it inside.

    A generator returned by f also runs without autocast; between its steps, the caller's autocast applies.
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
    """Takes a fraction of a microsecond, for hot loops; in older versions of PyTorch the first test leaves out MPS."""
    return torch._C._is_any_autocast_enabled() or torch.is_autocast_enabled("mps")


def _without_autocast(f: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    with autocast_off():
        return f(*args, **kwargs)


@contextmanager
def autocast_off() -> Iterator[None]:
    """Within the context there is no autocast, on any device."""
    with ExitStack() as stack:
        for device, _, _ in _autocasts():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _autocasts() -> list[tuple[str, torch.dtype, bool]]:
    """Device, dtype and cache setting of each active autocast."""
    if not _any_on():
        return []
    on = [device for device in (*DEVICES, torch._C._get_privateuse1_backend_name()) if _is_on(device)]
    return [(device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()) for device in on]


def _is_on(device: str) -> bool:
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # this PyTorch has no autocast for the device
        return False


def _with_autocast(autocasts: list[tuple[str, torch.dtype, bool]], argument: Any) -> Any:
    """A closure that runs under these autocasts; any other argument unchanged."""
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
    """The same generator with autocast off in its steps; at each yield the caller's autocast is restored."""
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
