"""A function that drains a generator takes over the generator's signature, which is then written only once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def drains(steps: Callable[P, Iterator[S]]) -> Callable[[Callable[[Iterator[S]], R]], Callable[P, R]]:
    """Decorate a function of the states of `steps`: it becomes a function with the arguments of `steps`.

    >>> def count_to(n):
    ...     yield from range(1, n + 1)
    >>> @drains(count_to)
    ... def total(states):
    ...     return sum(states)
    >>> total(n=4)
    10
    """

    def decorate(end: Callable[[Iterator[S]], R]) -> Callable[P, R]:
        @wraps(end)
        def drained(*args: P.args, **kwargs: P.kwargs) -> R:
            return end(steps(*args, **kwargs))

        returned = inspect.signature(end).return_annotation
        drained.__signature__ = inspect.signature(steps).replace(return_annotation=returned)  # type: ignore[attr-defined]
        return drained

    return decorate
