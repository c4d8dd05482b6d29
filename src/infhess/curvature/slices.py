"""Gradients of the slices of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.batches import Batch, part_of, size_of, sliced
from infhess.curvature.flat import Flat
from infhess.curvature.local import derivative, scalar
from infhess.curvature.untouched import untouched


def slice_gradients(loss: Callable[[Any], Tensor], batch: Batch, pieces: int, flat: Flat, seed: int) -> Tensor:
    """The gradients of `pieces` slices of a batch, as columns; slices of one size, so that a few points may be left out.

    Slices are taken one by one: mapped over all of them at once, a loss that keeps its value somewhere would keep a tensor that
    nobody can read.
    """
    whole = part_of(batch, 0, size_of(batch) // pieces * pieces)
    with untouched(flat.live, seed):
        parts = sliced([whole], pieces)
        return torch.stack([flat.pack(derivative([scalar(loss(part))], flat.live, None)) for part in parts], 1)
