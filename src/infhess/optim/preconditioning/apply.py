"""P² on the gradients of a step, parameter by parameter: passes over memory, and no number leaves the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infhess.curvature.flat import real
from infhess.optim.preconditioning.directions import Views, wide

Grads = list[Tensor | None]
Blocks = Sequence[Sequence[int]]


def preconditioned(
    grads: Sequence[Tensor | None], views: Sequence[Views], blocks: Blocks, factor: float = 1.0
) -> tuple[Grads, list[Tensor]]:
    """factor · (I − U diag(gain) Uᵀ) g for each block; and Uᵀg of each block.

    A parameter without a gradient is left out, and one whose shape has changed keeps its gradient as it is.
    """
    out: Grads = list(grads)
    seen = []
    for block in blocks:
        flat = {i: _flat(g, v) for i in block if (g := grads[i]) is not None and fits(g, v := views[i])}
        c = _sum([_inside(g, views[i]) for i, g in flat.items()], views[block[0]])
        taken = (views[block[0]].tensors["gain"] * c).to(c.dtype)
        for i, g in flat.items():
            out[i] = _like(_less(g, views[i], taken, factor), views[i], grads[i])  # type: ignore[arg-type]
        seen.append(c)
    return out, seen


def fits(grad: Tensor, views: Views) -> bool:
    """Whether the gradient has the shape that the directions were made for."""
    return (real(grad) if grad.is_complex() else grad).shape == views.shaped.shape


def _flat(grad: Tensor, views: Views) -> Tensor:
    g = real(grad).reshape(-1) if grad.is_complex() else grad.reshape(-1)
    return g if g.dtype == views.scratch.dtype else g.to(views.scratch.dtype)


def _inside(g: Tensor, views: Views) -> Tensor:
    return torch.mv(views.rows, g if views.root is None else g * views.root)


def _sum(parts: list[Tensor], views: Views) -> Tensor:
    total = parts[0] if parts else views.rows.new_zeros(len(views.rows))
    for part in parts[1:]:
        total = total + part.to(total.device)
    return total


def _less(g: Tensor, views: Views, taken: Tensor, factor: float) -> Tensor:
    return torch.addmv(g, views.columns, taken.to(g.device), beta=factor, alpha=-factor, out=views.scratch)


def _like(flat: Tensor, views: Views, grad: Tensor) -> Tensor:
    if grad.is_complex():
        return torch.view_as_complex(views.shaped.to(grad.real.dtype))
    if grad.is_contiguous():
        return views.shaped if flat.dtype == grad.dtype else views.shaped.to(grad.dtype)
    # Fused kernels walk through memory: the strides are to be those of the gradient.
    return torch.empty_like(grad).copy_(views.shaped)


def inside(grads: Sequence[Tensor | None], views: Sequence[Views], blocks: Blocks) -> list[Tensor]:
    """UᵀRg of each block."""
    seen = []
    for block in blocks:
        parts = [_inside(_flat(g, v), v) for i in block if (g := grads[i]) is not None and fits(g, v := views[i])]
        seen.append(_sum(parts, views[block[0]]))
    return seen


def redirected(
    params: Sequence[Tensor], before: Sequence[Tensor | None], decays: Sequence[float], views: Sequence[Views],
    blocks: Blocks, limit: float,
) -> None:  # fmt: skip
    """w ← before + R (I − U diag(gain) Uᵀ) R⁻¹ (w − before), in place, after a step of an optimizer that scales by R² itself.

    `before` is None for what did not move. `decays` is the part of w that each parameter lost to weight decay, which stays
    outside. No move is longer than `limit`. Without `blocks` the limit alone applies.
    """
    moves = [
        None if b is None or (blocks and not fits(p, views[i])) else _moved(p, b, decay)
        for i, (p, b, decay) in enumerate(zip(params, before, decays))
    ]
    for block in blocks:
        live = {i: d for i in block if (d := moves[i]) is not None}
        c = _sum([torch.mv(views[i].rows, _over_root(d, views[i])) for i, d in live.items()], views[block[0]])
        taken = (views[block[0]].tensors["gain"] * c).to(c.dtype)
        for i, d in live.items():
            out, root = torch.mv(views[i].columns, taken.to(d.device)), views[i].root
            d -= out if root is None else root * out
    moves = shortened(moves, [1.0] * len(moves), limit) if limit < float("inf") else moves
    for p, b, decay, move in zip(params, before, decays, moves):
        if move is not None and b is not None:
            target = real(b) * (1 - decay) + move.view_as(real(b)).to(real(b).dtype)
            p.detach().copy_(torch.view_as_complex(target) if p.is_complex() else target)


def _moved(p: Tensor, before: Tensor, decay: float) -> Tensor:
    """The move of a parameter less its decay, flat."""
    move, b = real(p.detach() - before).reshape(-1), real(before).reshape(-1)
    return move.to(wide(move)).add_(b.to(wide(b)), alpha=decay)


def _over_root(move: Tensor, views: Views) -> Tensor:
    return move if views.root is None else move / views.root


def lengths(grads: Sequence[Tensor]) -> list[Tensor]:
    """|g| of each tensor, on its device, in single precision at the least."""
    parts = [real(g) for g in grads]
    return list(torch._foreach_norm(parts, 2, wide(parts[0]))) if parts else []


def shortened(grads: Sequence[Tensor | None], rates: Sequence[float | Tensor], limit: float) -> Grads:
    """The gradients, all divided by one number where the step Σ (rate·|g|)² would be longer than the limit."""
    out: Grads = list(grads)
    live = {i: g for i, g in enumerate(grads) if g is not None}
    if not live:
        return out
    norms = lengths(list(live.values()))
    together = torch.stack([norm.to(norms[0].device) * rates[i] for norm, i in zip(norms, live)])
    shrink = (limit / torch.linalg.vector_norm(together)).clamp(max=1.0)
    for i, g in live.items():
        out[i] = g * shrink.to(g.device, real(g).dtype)
    return out
