"""Memory for long columns."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

LARGE = 2**25  # bytes; smaller blocks are reused by the allocator and already in memory


def empty_rows(rows: int, length: int, like: Tensor) -> Tensor:
    """An empty tensor (rows, length) in the dtype and on the device of `like`, on huge pages if Linux offers them.

    The first write to fresh memory causes a page fault for every 4 KiB: six times the cost of a copy. A huge page is 2 MiB.
    """
    size = rows * length * like.element_size()
    if like.device.type != "cpu" or size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(rows, length)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return like.new_empty(rows, length)  # no huge pages in this kernel
    return torch.frombuffer(memory, dtype=like.dtype).view(rows, length)
