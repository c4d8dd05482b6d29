"""P² on the gradients of a step, parameter by parameter: passes over memory, and no number leaves the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.flat import real

Own = dict[str, Tensor]
Grads = list[Tensor | None]


class Handle(NamedTuple):
    """Views of what was learnt of a parameter, made once: a step is short of time for them."""

    own: Own
    rows: Tensor  # Uᵀ, (k, n)
    columns: Tensor  # U, (n, k)
    root: Tensor | None  # R, (n,)
    room: Tensor  # (n,) for the gradient handed on: new memory costs more than writing to it
    shaped: Tensor  # the same in the shape of the parameter

    @classmethod
    def of(cls, own: Own) -> Handle:
        """From the tensors of a parameter."""
        rows = own["basis"].view(len(own["basis"]), -1)
        room = rows.new_empty(rows.shape[1])
        root = own["root"].view(-1) if "root" in own else None
        return cls(own, rows, rows.mT, root, room, room.view(own["basis"].shape[1:]))


def preconditioned(
    grads: Sequence[Tensor | None], handles: Sequence[Handle], blocks: Sequence[Sequence[int]], factor: float = 1.0
) -> tuple[Grads, list[Tensor]]:
    """factor · (I − U diag(gain) Uᵀ) g for each block; and Uᵀg of each block.

    A parameter without a gradient is left out, and one whose shape has changed keeps its gradient as it is.
    """
    out: Grads = list(grads)
    seen = []
    for block in blocks:
        flat = {i: _flat(g, h) for i in block if (g := grads[i]) is not None and fits(g, h := handles[i])}
        c = _sum([_inside(g, handles[i]) for i, g in flat.items()], handles[block[0]])
        taken = (handles[block[0]].own["gain"] * c).to(c.dtype)
        for i, g in flat.items():
            out[i] = _like(_less(g, handles[i], taken, factor), handles[i], grads[i])  # type: ignore[arg-type]
        seen.append(c)
    return out, seen


def fits(grad: Tensor, handle: Handle) -> bool:
    """Whether the gradient has the shape that the directions were made for."""
    return (real(grad) if grad.is_complex() else grad).shape == handle.shaped.shape


def _flat(grad: Tensor, handle: Handle) -> Tensor:
    g = real(grad).reshape(-1) if grad.is_complex() else grad.reshape(-1)
    return g if g.dtype == handle.room.dtype else g.to(handle.room.dtype)


def _inside(g: Tensor, handle: Handle) -> Tensor:
    return torch.mv(handle.rows, g if handle.root is None else g * handle.root)


def _sum(parts: list[Tensor], handle: Handle) -> Tensor:
    total = parts[0] if parts else handle.rows.new_zeros(len(handle.rows))
    for part in parts[1:]:
        total = total + part.to(total.device)
    return total


def _less(g: Tensor, handle: Handle, taken: Tensor, factor: float) -> Tensor:
    return torch.addmv(g, handle.columns, taken.to(g.device), beta=factor, alpha=-factor, out=handle.room)


def _like(flat: Tensor, handle: Handle, grad: Tensor) -> Tensor:
    if grad.is_complex():
        return torch.view_as_complex(handle.shaped.to(grad.real.dtype))
    if grad.is_contiguous():
        return handle.shaped if flat.dtype == grad.dtype else handle.shaped.to(grad.dtype)
    # Fused kernels walk through memory: the strides are to be those of the gradient.
    return torch.empty_like(grad).copy_(handle.shaped)


def inside(grads: Sequence[Tensor | None], handles: Sequence[Handle], blocks: Sequence[Sequence[int]]) -> list[Tensor]:
    """UᵀRg of each block."""
    seen = []
    for block in blocks:
        parts = [_inside(_flat(g, h), h) for i in block if (g := grads[i]) is not None and fits(g, h := handles[i])]
        seen.append(_sum(parts, handles[block[0]]))
    return seen


def redirected(
    params: Sequence[Tensor],
    before: Sequence[Tensor | None],
    decays: Sequence[float],
    handles: Sequence[Handle],
    blocks: Sequence[Sequence[int]],
    limit: float,
) -> None:
    """w ← before + R (I − U diag(gain) Uᵀ) R⁻¹ (w − before), in place, after a step of an optimizer that scales by R² itself.

    `before` is None for what did not move. `decays` is the part of w that each parameter lost to weight decay, which stays
    outside. No move is longer than `limit`.
    """
    moves = [
        _flat(p.detach() - b, h).add_(_flat(b, h), alpha=decay) if b is not None and fits(p, h) else None
        for p, b, decay, h in zip(params, before, decays, handles)
    ]
    for block in blocks:
        live = {i: d for i in block if (d := moves[i]) is not None}
        c = _sum([handles[i].rows @ (d / _root(handles[i])) for i, d in live.items()], handles[block[0]])
        taken = (handles[block[0]].own["gain"] * c).to(c.dtype)
        for i, d in live.items():
            d -= _root(handles[i]) * (handles[i].columns @ taken.to(d.device))
    moves = shortened(moves, [1.0] * len(moves), limit) if limit < float("inf") else moves
    for p, b, decay, move in zip(params, before, decays, moves):
        if move is not None and b is not None:
            target = real(b) * (1 - decay) + move.view_as(real(b)).to(real(b).dtype)
            p.detach().copy_(torch.view_as_complex(target) if p.is_complex() else target)


def _root(handle: Handle) -> Tensor:
    assert handle.root is not None
    return handle.root


def shortened(grads: Sequence[Tensor | None], rates: Sequence[float | Tensor], limit: float) -> Grads:
    """The gradients, all divided by one number where the step Σ (rate·|g|)² would be longer than the limit."""
    out: Grads = list(grads)
    live = {i: g for i, g in enumerate(grads) if g is not None}
    if not live:
        return out
    norms = torch._foreach_norm([real(g) for g in live.values()], 2, torch.promote_types(_dtype(live), torch.float32))
    lengths = torch.stack([norm.to(norms[0].device) * rates[i] for norm, i in zip(norms, live)])
    shrink = (limit / torch.linalg.vector_norm(lengths)).clamp(max=1.0)
    for i, g in live.items():
        out[i] = g * shrink.to(g.device, real(g).dtype)
    return out


def _dtype(grads: dict[int, Tensor]) -> torch.dtype:
    return real(next(iter(grads.values()))).dtype
