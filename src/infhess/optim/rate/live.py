"""The gradients of a parameter group as the step needs them: real, at least single precision, local, and for descent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess.curvature.flat import dense, real
from infhess.optim import sharded
from infhess.optim.rate.probe import wide

PLAIN = (torch.float32, torch.float64)


class Live(NamedTuple):
    """A group, its parameters that have a gradient, and their gradients; for sharded parameters the local parts."""

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]


def live(group: dict[str, Any]) -> Live:
    """The parameters of a group that have a gradient; gradients of −loss if the group maximises."""
    params = [p for p in group["params"] if p.grad is not None]
    grads = [_gradient(p) for p in params]
    return Live(group, params, list(torch._foreach_neg(grads)) if group["maximize"] and grads else grads)


def _gradient(p: Tensor) -> Tensor:
    grad = p.grad
    assert grad is not None
    if grad.is_sparse:
        raise RuntimeError("RateFree does not take sparse gradients; use sparse=False in the embedding")
    return grad if type(grad) is Tensor and grad.dtype in PLAIN else plain(p)


def gradients(params: Sequence[Tensor], state: Mapping[Tensor, Any]) -> list[Tensor]:
    """`.grad` of each parameter; zeros where it is None."""
    return [torch.zeros_like(sharded.local(state[p]["z"])) if p.grad is None else plain(p) for p in params]


def plain(p: Tensor) -> Tensor:
    """The gradient of a parameter: dense, real, in at least single precision; the local part if it is sharded."""
    grad = p.grad
    assert grad is not None
    if sharded.is_sharded(grad):
        grad = sharded.local(sharded.laid_out(grad, p))
    return wide(real(dense(grad)))
