"""Gradients of the slices of a batch, in one pass where PyTorch can."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.batches import Batch, mapped, part_of, size_of, sliced
from infhess.curvature.flat import Flat
from infhess.curvature.local import DifferenceLocal
from infhess.curvature.untouched import untouched


def slice_gradients(loss: Callable[[Any], Tensor], batch: Batch, pieces: int, flat: Flat, seed: int) -> Tensor:
    """The gradients of `pieces` slices of a batch, as columns; slices of one size, so that a few points may be left out."""
    size = size_of(batch) // pieces
    whole = part_of(batch, 0, size * pieces)
    try:
        found = _at_once(loss, whole, pieces, flat, seed)
    except (RuntimeError, ValueError, TypeError, IndexError):  # a loss that cannot be mapped over slices
        found = None
    if found is not None:
        return found
    parts = sliced([whole], pieces)
    return torch.stack([DifferenceLocal(loss, part, flat, seed).gradient() for part in parts], 1)


def _at_once(loss: Callable[[Any], Tensor], batch: Batch, pieces: int, flat: Flat, seed: int) -> Tensor | None:
    """One pass over all the slices; None where that cannot be."""
    leaves: list[Any] = []
    mapped(leaves.extend, [batch], size_of(batch))
    if any(p.is_complex() for p in flat.live) or not all(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    stacked = [t.reshape(pieces, -1, *t.shape[1:]) for t in leaves]

    def of_slice(*parts: Tensor) -> Tensor:
        given = iter(parts)
        return loss(mapped(lambda _: next(given), [batch], size_of(batch)))

    with untouched(flat.live, seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operations that are mapped one by one are slower, and no worse
        losses = torch.vmap(of_slice, randomness="different")(*stacked).reshape(pieces)
        unit = torch.eye(pieces, dtype=losses.dtype, device=losses.device)
        options: dict[str, Any] = {"allow_unused": True, "is_grads_batched": True}
        gradients = torch.autograd.grad(losses, flat.live, unit, **options)
    given = [torch.zeros(pieces, *p.shape).to(p) if g is None else g for g, p in zip(gradients, flat.live)]
    return torch.stack([flat.pack(g) for g in zip(*given)], 1)
