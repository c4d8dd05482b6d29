"""P² on the gradients of a step, block by block: a few passes over memory, and no number leaves the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from infhess.curvature.flat import flattened, real, widened
from infhess.optim.preconditioning.directions import Directions, PreconditionerState, fits, numbers, wide

Grads = Sequence[Tensor | None]


def preconditioned(grads: Grads, state: PreconditionerState, factor: float = 1.0) -> tuple[list[Tensor | None], Tensor]:
    """factor · (I − U diag(gain) Uᵀ) g of each block; and Uᵀg of all blocks.

    A parameter without a gradient has none after it, either. One whose shape has changed keeps its gradient as it is.
    """
    out, seen = list(grads), []
    for own, block in zip(state.blocks, state.layout):
        g = _flat(grads, own, block)
        c = torch.mv(own.basis, g)
        torch.addmv(g, own.basis.mT, own.taken * c, beta=factor, alpha=-factor, out=own.scratch)
        for i, part in zip(block, own.parts):
            if (grad := grads[i]) is not None and fits(grad, part.numel()):
                out[i] = _like(part, grad)
        seen.append(c)
    return out, _together(seen)


def _flat(tensors: Grads, own: Directions, block: Sequence[int]) -> Tensor:
    """The tensors of a block as one vector, zeros for those that are missing or do not fit."""
    given = [tensors[i] for i in block]
    fitting = [own.basis.new_zeros(n) if t is None or not fits(t, n) else t for t, n in zip(given, own.sizes)]
    return flattened(fitting, own.basis.dtype, own.basis.device)


def _like(part: Tensor, grad: Tensor) -> Tensor:
    """A part of a flat vector as a gradient."""
    if grad.is_contiguous() and grad.shape == part.shape:
        return part if part.dtype == grad.dtype and part.device == grad.device else part.to(grad)
    if grad.is_complex():
        return torch.view_as_complex(part.view(*grad.shape, 2).to(grad.device, grad.real.dtype, copy=True))
    # Fused kernels walk through memory: the strides are to be those of the gradient.
    return torch.empty_like(grad).copy_(part.view(grad.shape))


def _together(seen: list[Tensor]) -> Tensor:
    return seen[0] if len(seen) == 1 else torch.cat([c.to(seen[0].device) for c in seen])


def _roots(state: PreconditionerState, params: list[Tensor]) -> list[Tensor | None]:
    """R of each block; None where the base has no scaling of its own."""
    if state.root is None:
        return [None] * len(state.blocks)
    parts = torch.split(state.root, numbers(params))
    return [torch.cat([parts[i] for i in block]) for block in state.layout]


def inside(grads: Grads, params: list[Tensor], state: PreconditionerState) -> Tensor:
    """UᵀRg of all blocks."""
    seen = []
    for own, block, root in zip(state.blocks, state.layout, _roots(state, params)):
        g = _flat(grads, own, block)
        seen.append(torch.mv(own.basis, g if root is None else g * root))
    return _together(seen)


def redirected(
    params: list[Tensor], before: Grads, decays: Sequence[float], state: PreconditionerState, limit: float
) -> None:
    """w ← before + R (I − U diag(gain) Uᵀ) R⁻¹ (w − before), in place, after a step of an optimizer that scales by R² itself.

    `before` is None for what did not move. `decays` is the part of w that each parameter lost to weight decay, which stays
    outside. No move is longer than `limit`. Without directions the limit alone applies.
    """
    moves: list[Tensor | None] = [
        None if b is None else _moved(p, b, decay) for p, b, decay in zip(params, before, decays)
    ]
    if state.controller.directions:
        for own, block, root in zip(state.blocks, state.layout, _roots(state, params)):
            _bend(moves, own, block, root)
    moves = shortened(moves, [1.0] * len(moves), limit)[0] if limit < math.inf else moves
    for p, b, decay, move in zip(params, before, decays, moves):
        if move is not None and b is not None:
            target = real(b) * (1 - decay) + move.view_as(real(b)).to(real(b).dtype)
            p.detach().copy_(torch.view_as_complex(target) if p.is_complex() else target)


def _bend(moves: list[Tensor | None], own: Directions, block: Sequence[int], root: Tensor | None) -> None:
    d = _flat(moves, own, block)
    out = torch.mv(own.basis.mT, own.taken * torch.mv(own.basis, d if root is None else d / root))
    for i, part in zip(block, torch.split(out if root is None else root * out, own.sizes)):
        move = moves[i]
        if move is not None and fits(move, len(part)):
            move -= part.to(move)


def _moved(p: Tensor, before: Tensor, decay: float) -> Tensor:
    """The move of a parameter less its decay, flat."""
    move, b = real(p.detach() - before).reshape(-1), real(before).reshape(-1)
    return move.to(wide(move)).add_(b.to(wide(b)), alpha=decay)


def shortened(grads: Grads, rates: Sequence[float | Tensor], limit: float) -> tuple[list[Tensor | None], float]:
    """The gradients, all divided by one number where the step √Σ (rate·|g|)² would be longer than the limit; and its length."""
    live = [(real(g), rate) for g, rate in zip(grads, rates) if g is not None]
    if not live:
        return list(grads), 0.0
    norms = torch._foreach_norm([widened(g) for g, _ in live])
    place, factors = norms[0].device, [rate for _, rate in live]
    if place.type == "cpu":
        size = math.hypot(*(norm.item() * float(rate) for norm, rate in zip(norms, factors)))
        if size <= limit:
            return list(grads), size
    together = torch.linalg.vector_norm(torch.stack([n.to(place) * rate for n, rate in zip(norms, factors)]))
    shrink = (limit / together).clamp(max=1.0)
    return [None if g is None else g * shrink.to(g.device, real(g).dtype) for g in grads], float(together)
