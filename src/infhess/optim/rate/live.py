"""The gradients of a parameter group as the step needs them: real, at least single precision, local, and for descent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess.optim import sharded
from infhess.optim.rate.probe import plain

PLAIN = (torch.float32, torch.float64)


class Live(NamedTuple):
    """A group, its parameters that have a gradient, and their gradients; for sharded parameters the local parts.

    For a step, also the state of each parameter and its number of steps so far.
    """

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]
    owns: Sequence[dict[str, Any]] = ()
    ages: Sequence[float] = ()


def live(group: dict[str, Any]) -> Live:
    """The parameters of a group that have a gradient; gradients of −loss if the group maximises."""
    params = [p for p in group["params"] if p.grad is not None]
    grads = [_gradient(p) for p in params]
    return Live(group, params, list(torch._foreach_neg(grads)) if group["maximize"] and grads else grads)


def moving(parts: Sequence[Live], lengths: Sequence[float]) -> list[Live]:
    """Without the parameters whose gradients are exactly zero, given their lengths: they do not move."""
    if all(lengths):
        return list(parts)
    found, given = [], iter(lengths)
    for part in parts:
        chosen = [(p, g) for p, g, size in zip(part.params, part.grads, given) if size]
        found += [Live(part.group, *map(list, zip(*chosen)))] if chosen else []
    return found


def gradients(params: Sequence[Tensor]) -> list[Tensor]:
    """`.grad` of each parameter; zeros where it is None."""
    return [torch.zeros_like(plain(sharded.local(p))) if p.grad is None else _gradient(p) for p in params]


def _gradient(p: Any) -> Tensor:
    grad: Tensor = p.grad
    if grad.is_sparse:
        raise RuntimeError("RateFree does not take sparse gradients; use sparse=False in the embedding")
    if type(grad) is Tensor and grad.dtype in PLAIN:  # nearly always, and tested fast
        return grad
    return plain(sharded.local(sharded.laid_out(grad, p)) if sharded.is_sharded(grad) else grad)
