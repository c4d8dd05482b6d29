"""Processes that train one model together: what each has seen, agreed upon."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import distributed

from infhess._checks import small_dtype


def world() -> int:
    """How many there are."""
    together = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if together else 1


def agreed(values: Sequence[float], device: torch.device) -> list[float]:
    """Each number averaged over the processes that have it; NaN where none has. All of them have to call this together."""
    if world() == 1:
        return list(values)
    known = [math.isfinite(v) for v in values]
    both = [[v if k else 0.0, float(k)] for v, k in zip(values, known)]
    sums = torch.tensor(both, dtype=small_dtype(device), device=device)
    distributed.all_reduce(sums)
    return [total / n if n else math.nan for total, n in sums.tolist()]
