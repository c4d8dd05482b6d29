"""Distributed training: what each process has measured, combined by all-reduce."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from infhess._checks import small_dtype


def world_size() -> int:
    """Number of processes that train together; 1 without `torch.distributed`."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def all_reduce_mean(values: Sequence[float], device: torch.device) -> list[float]:
    """Average each number over the processes that have it; NaN if none has. All processes have to call this together."""
    if world_size() == 1:
        return list(values)
    known = [math.isfinite(v) for v in values]
    both = [[v if k else 0.0, float(k)] for v, k in zip(values, known)]
    sums = torch.tensor(both, dtype=small_dtype(device), device=device)
    distributed.all_reduce(sums)
    return [total / n if n else math.nan for total, n in sums.tolist()]


def any_process(condition: bool, device: torch.device) -> bool:
    """Whether the condition holds in any process."""
    return all_reduce_mean([float(condition)], device)[0] > 0


def mean_over_processes(tensor: Tensor) -> Tensor:
    """The mean of a tensor over processes; in place if there are several."""
    if world_size() > 1:
        distributed.all_reduce(tensor)
        tensor /= world_size()
    return tensor


def all_reduce_sum(values: Sequence[float], device: torch.device) -> list[float]:
    """Sum each number over processes."""
    if world_size() == 1:
        return list(values)
    sums = torch.tensor(values, dtype=small_dtype(device), device=device)
    distributed.all_reduce(sums)
    found: list[float] = sums.tolist()
    return found


def rank() -> int:
    """The rank of this process."""
    return distributed.get_rank() if world_size() > 1 else 0
