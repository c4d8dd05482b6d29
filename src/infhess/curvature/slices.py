"""Gradients of the slices of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.batch_curvature import derivative
from infhess.curvature.batches import Batch, size_of, slice_of, sliced
from infhess.curvature.flat import Flat
from infhess.curvature.loss import scalar
from infhess.curvature.no_side_effects import no_side_effects


def slice_gradients(loss: Callable[[Any], Tensor], batch: Batch, pieces: int, flat: Flat, seed: int) -> Tensor:
    """The gradients of `pieces` slices of a batch, as columns; slices have the same size, so a few points may be left out.

    Slices are computed one by one: under vmap, a loss that stores its value somewhere would store a tensor that cannot be
    read.
    """
    whole = slice_of(batch, 0, size_of(batch) // pieces * pieces)
    with no_side_effects(flat.live, seed):
        parts = sliced([whole], pieces)
        return torch.stack([flat.pack(derivative([scalar(loss(part))], flat.live, None)) for part in parts], 1)
