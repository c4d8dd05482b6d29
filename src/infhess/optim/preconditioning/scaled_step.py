"""A step of the base with P²: applied to its gradients, or to its update if the base scales gradients itself.

P² costs a few passes over memory, block by block, and no data leaves the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import flattened, length, real, widened
from infhess.optim.base_optimizers import adaptive, bare_step, decayed, momentum_of, reference_rate
from infhess.optim.checkpoint import finite, params_of
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.preconditioning.directions import Directions, PreconditionerState, fits, numbers

Grads = Sequence[Tensor | None]


def scaled_step(base: torch.optim.Optimizer, preconditioner: PreconditionerState) -> None:
    """Make a step with step·lr/lr₀ instead of lr, if a step length is known and the gradient is finite."""
    state, groups, scales = preconditioner.controller, base.param_groups, adaptive(base)
    params = params_of(groups)
    grads = [p.grad for p in params]
    if any(g is not None and g.is_sparse for g in grads):
        raise RuntimeError("Preconditioned does not take sparse gradients; use sparse=False in the embedding")
    # A step with a limit measures its length, which also shows whether gradients are finite.
    limited = not scales and state.step != 0 and state.limit < math.inf
    if not limited and not finite(grads):
        state.skipped += 1
        return
    if state.step == 0:
        return
    options = _options(base, state)
    before = [{name: group[name] for name in changed} for group, changed in zip(groups, options)]
    try:
        for group, changed in zip(groups, options):
            group.update(changed)
        (_redirected_step if scales else _preconditioned_step)(base, preconditioner, params, grads)
    finally:
        for p, g in zip(params, grads):
            p.grad = g
        for group, changed in zip(groups, before):
            group.update(changed)


def _options(base: torch.optim.Optimizer, state: ControllerState) -> list[dict[str, Any]]:
    """Temporary options of each of the base's groups during a step; lr₀ is the rate that stands for the measured step."""
    groups = base.param_groups
    if math.isnan(state.step):
        return [{} for _ in groups]
    if any("initial_lr" in group for group in groups):  # there is a schedule
        state.scheduled_rate = max(state.scheduled_rate, *(float(group.get("lr", 0.0)) for group in groups))
    step = state.step * state.factor / reference_rate(groups, state.base_rate, state.scheduled_rate)
    options = []
    for group in groups:
        changed = {"lr": group["lr"] * (step * momentum_of(group).correction)} if "lr" in group else {}
        if state.momentum and type(base) is torch.optim.SGD and not group["momentum"]:
            changed["momentum"] = state.momentum
        options.append(changed)
    return options


def _preconditioned_step(
    base: torch.optim.Optimizer, preconditioner: PreconditionerState, params: list[Tensor], grads: Grads
) -> None:
    """Give the base P²g instead of g."""
    state, scaled, seen, share = preconditioner.controller, grads, None, 1.0
    # If the base keeps its own rate, P² includes its factor; otherwise the rate does.
    factor = state.factor if math.isnan(state.step) else 1.0
    if state.directions:
        scaled, seen = preconditioned(grads, preconditioner, factor)
    if state.limit < math.inf:
        # How far a constant gradient moves each parameter in the long run.
        groups = [(g["lr"] / momentum_of(g).correction, len(g["params"])) for g in base.param_groups]
        scaled, size = shortened(scaled, [rate for rate, n in groups for _ in range(n)], state.limit)
        if not math.isfinite(size):
            state.skipped += 1
            return
        share = min(1.0, state.limit / size) if size else 1.0
    if seen is not None:
        preconditioner.drift.see(seen, base.param_groups[0], share)
    for p, g in zip(params, scaled):
        p.grad = g
    bare_step(base)


def _redirected_step(
    base: torch.optim.Optimizer, preconditioner: PreconditionerState, params: list[Tensor], grads: Grads
) -> None:
    """Give the base g, so that its own scaling is unaffected; P then changes the update of w."""
    state = preconditioner.controller
    if not (state.directions or state.limit < math.inf):
        bare_step(base)
        return
    if state.directions:
        preconditioner.drift.see(coordinates(grads, params, preconditioner), base.param_groups[0])
    before = [None if g is None else p.detach().clone() for p, g in zip(params, grads)]
    decays = [decayed(base, group) for group in base.param_groups for _ in group["params"]]
    bare_step(base)
    if state.directions:
        redirect(params, before, decays, preconditioner)
    else:
        shorten(params, before, decays, state.limit)


# ---- P² of each block


def preconditioned(grads: Grads, state: PreconditionerState, factor: float) -> tuple[list[Tensor | None], Tensor]:
    """factor · (I − U diag(gain) Uᵀ) g of each block, and Uᵀg of all blocks.

    A parameter without a gradient still has none afterwards. One whose shape has changed keeps its gradient as it is.
    """
    out, seen = list(grads), []
    for own in state.blocks:
        g = _flat(grads, own)
        c = torch.mv(own.basis, g)
        torch.addmv(g, own.basis.mT, own.taken * c, beta=factor, alpha=-factor, out=own.scratch)
        for i, part in zip(own.indices, own.parts):
            if (grad := grads[i]) is not None and fits(grad, part.numel()):
                out[i] = _like(part, grad)
        seen.append(c)
    return out, _together(seen)


def coordinates(grads: Grads, params: list[Tensor], state: PreconditionerState) -> Tensor:
    """UᵀRg of all blocks."""
    seen = []
    for own, root in zip(state.blocks, _roots(state, params)):
        g = _flat(grads, own)
        seen.append(torch.mv(own.basis, g if root is None else g * root))
    return _together(seen)


def redirect(params: list[Tensor], before: Grads, decays: Sequence[float], state: PreconditionerState) -> None:
    """w ← before + R (I − U diag(gain) Uᵀ) R⁻¹ (w − before), in place, after a step of an optimizer that scales by R² itself.

    `before` is None for parameters that did not move. `decays` is the share of w that each parameter lost to weight decay,
    which P leaves alone. No update is longer than the limit.
    """
    pairs, limit = zip(params, before, decays), state.controller.limit
    # Flat updates, without weight decay.
    moves: list[Tensor | None] = [
        None if b is None else _flat_and_wide(p.detach() - b).add_(_flat_and_wide(b), alpha=decay)
        for p, b, decay in pairs
    ]
    for own, root in zip(state.blocks, _roots(state, params)):
        d = _flat(moves, own)
        out = torch.mv(own.basis.mT, own.taken * torch.mv(own.basis, d if root is None else d / root))
        for i, part in zip(own.indices, torch.split(out if root is None else root * out, own.sizes)):
            move = moves[i]
            if move is not None and fits(move, len(part)):
                move -= part.to(move)
    moves = shortened(moves, [1.0] * len(moves), limit)[0] if limit < math.inf else moves
    for p, b, decay, move in zip(params, before, decays, moves):
        if move is not None and b is not None:
            target = real(b) * (1 - decay) + move.view_as(real(b)).to(real(b).dtype)
            p.detach().copy_(torch.view_as_complex(target) if p.is_complex() else target)


def shorten(params: list[Tensor], before: Grads, decays: Sequence[float], limit: float) -> None:
    """Pull w back towards `before`, in place, if a step without weight decay is longer than the limit."""
    live = [(real(p.detach()), real(b), decay) for p, b, decay in zip(params, before, decays) if b is not None]
    moved = [w - b * (1 - decay) if decay else w - b for w, b, decay in live]
    size = length([moved]) if moved else 0.0
    if not size <= limit:
        for (w, b, decay), move in zip(live, moved):
            w.copy_(b * (1 - decay) + move * (limit / size) if math.isfinite(size) else b)


def _flat_and_wide(x: Tensor) -> Tensor:
    return widened(real(x).reshape(-1))


def shortened(grads: Grads, rates: Sequence[float | Tensor], limit: float) -> tuple[list[Tensor | None], float]:
    """Gradients, divided by a common number if the step √Σ (rate·|g|)² would exceed the limit; and the length of that step."""
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


def _flat(tensors: Grads, own: Directions) -> Tensor:
    """The tensors of a block as one vector, with zeros for missing or misfitting ones."""
    given = [tensors[i] for i in own.indices]
    fitting = [own.basis.new_zeros(n) if t is None or not fits(t, n) else t for t, n in zip(given, own.sizes)]
    return flattened(fitting, own.basis.dtype, own.basis.device)


def _like(part: Tensor, grad: Tensor) -> Tensor:
    """A slice of a flat vector in the form of a gradient."""
    if grad.is_contiguous() and grad.shape == part.shape:
        return part if part.dtype == grad.dtype and part.device == grad.device else part.to(grad)
    if grad.is_complex():
        return torch.view_as_complex(part.view(*grad.shape, 2).to(grad.device, grad.real.dtype, copy=True))
    # Fused kernels run through memory in order, so the strides have to be those of the gradient.
    return torch.empty_like(grad).copy_(part.view(grad.shape))


def _together(seen: list[Tensor]) -> Tensor:
    return seen[0] if len(seen) == 1 else torch.cat([c.to(seen[0].device) for c in seen])


def _roots(state: PreconditionerState, params: list[Tensor]) -> list[Tensor | None]:
    """R of each block; None if the base has no scaling of its own."""
    if state.root is None:
        return [None] * len(state.blocks)
    parts = torch.split(state.root, numbers(params))
    return [torch.cat([parts[i] for i in own.indices]) for own in state.blocks]
