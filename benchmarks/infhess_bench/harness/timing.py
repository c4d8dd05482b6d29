"""Seconds of calls, and what memory bandwidth allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import torch

COLUMNS, FLOAT = 16, 4


def timed(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of a call."""
    start = clock()
    call()
    return clock() - start


# CPU seconds of a call: other processes on the machine do not count.
processor_seconds = partial(timed, clock=time.process_time)


def median_seconds(call: Callable[[], object], repeats: int = 11) -> float:
    """The median of several timings, after a warm-up."""
    call()
    return median(timed(call) for _ in range(repeats))


def copy_seconds(size: int) -> float:
    """Seconds to copy 16 columns of `size` float32 numbers."""
    source = torch.rand(COLUMNS, size)
    target = torch.empty_like(source)
    return median_seconds(lambda: target.copy_(source))


def copied_bytes(size: int) -> int:
    """Bytes that such a copy moves: each number is read once and written once."""
    return 2 * COLUMNS * size * FLOAT


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Use this many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
