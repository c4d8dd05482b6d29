"""A step of the base with P²: on the gradients that it finds, or on its move where it scales gradients by itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import length, real
from infhess.optim.base_optimizers import adaptive, bare_step, decayed, momentum_of, reference_rate
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.preconditioning.apply import Grads, inside, preconditioned, redirected, shortened
from infhess.optim.preconditioning.directions import PreconditionerState


def scaled_step(base: torch.optim.Optimizer, learnt: PreconditionerState) -> None:
    """A step of step·lr/lr₀ instead of lr, where that is known and the gradient is finite."""
    state, groups, scales = learnt.controller, base.param_groups, adaptive(base)
    params = [p for group in groups for p in group["params"]]
    grads = [p.grad for p in params]
    if any(g is not None and g.is_sparse for g in grads):
        raise RuntimeError("Preconditioned does not take sparse gradients; use sparse=False in the embedding")
    # A limited step measures its own length, and that of g need not be known.
    limited = not scales and state.step != 0 and state.limit < math.inf
    if not limited and (not finite(grads, state) or state.step == 0):
        return
    options = _options(base, state)
    before = [{name: group[name] for name in changed} for group, changed in zip(groups, options)]
    try:
        for group, changed in zip(groups, options):
            group.update(changed)
        (_bent if scales else _scaled)(base, learnt, params, grads)
    finally:
        for p, g in zip(params, grads):
            p.grad = g
        for group, changed in zip(groups, before):
            group.update(changed)


def finite(grads: Grads, state: ControllerState) -> bool:
    """Whether gradients are; a step is counted as skipped where they are not."""
    known = [real(g) for g in grads if g is not None and not g.is_sparse]
    return not known or _counts(length([known]), state)


def _counts(size: float, state: ControllerState) -> bool:
    """Whether a length is finite; a step is counted as skipped where it is not."""
    state.skipped += not math.isfinite(size)
    return math.isfinite(size)


def _options(base: torch.optim.Optimizer, state: ControllerState) -> list[dict[str, Any]]:
    """What the base is to find in each of its groups during a step."""
    if math.isnan(state.step):
        return [{} for _ in base.param_groups]
    step, options = state.step * state.factor / _reference_rate(base, state), []
    for group in base.param_groups:
        changed = {"lr": group["lr"] * (step * momentum_of(group).correction)} if "lr" in group else {}
        if state.momentum and type(base) is torch.optim.SGD and not group["momentum"]:
            changed["momentum"] = state.momentum
        options.append(changed)
    return options


def _reference_rate(base: torch.optim.Optimizer, state: ControllerState) -> float:
    """lr₀, the learning rate that stands for the measured step."""
    if any("initial_lr" in group for group in base.param_groups):  # a schedule is at work
        rates = [float(group.get("lr", 0.0)) for group in base.param_groups]
        state.scheduled_rate = max(state.scheduled_rate, *rates)
    return reference_rate(base.param_groups, state.base_rate, state.scheduled_rate)


def _scaled(base: torch.optim.Optimizer, learnt: PreconditionerState, params: list[Tensor], grads: Grads) -> None:
    """The base sees P²g instead of g."""
    state, scaled, seen = learnt.controller, grads, None
    # Where the step is the base's own P² comes with its factor, and else the learning rate does.
    factor = state.factor if math.isnan(state.step) else 1.0
    if state.directions:
        scaled, seen = preconditioned(grads, learnt, factor)
    if state.limit < math.inf:
        # How far a constant gradient moves each parameter in the end.
        groups = [(g["lr"] / momentum_of(g).correction, len(g["params"])) for g in base.param_groups]
        scaled, size = shortened(scaled, [rate for rate, n in groups for _ in range(n)], state.limit)
        if not _counts(size, state):
            return
    if seen is not None:
        learnt.drift.see(seen, base.param_groups[0])
    for p, g in zip(params, scaled):
        p.grad = g
    bare_step(base)


def _bent(base: torch.optim.Optimizer, learnt: PreconditionerState, params: list[Tensor], grads: Grads) -> None:
    """The base sees g, so that its own scaling stays what it is, and what it does to w is bent by P."""
    state = learnt.controller
    if not (state.directions or state.limit < math.inf):
        bare_step(base)
        return
    if state.directions:
        learnt.drift.see(inside(grads, params, learnt), base.param_groups[0])
    before = [None if g is None else p.detach().clone() for p, g in zip(params, grads)]
    decays = [decayed(base, group) for group in base.param_groups for _ in group["params"]]
    bare_step(base)
    redirected(params, before, decays, learnt, state.limit)
