"""A step of Preconditioned as one graph of `torch.compile`, the base's own step included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import real, widened
from infhess.optim.base_optimizers import adaptive, bare_step, decoupled_decay, momentum_of
from infhess.optim.checkpoint import params_of
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.graph_host import decide, norm, together
from infhess.optim.preconditioning.directions import PREFIX, PreconditionerState
from infhess.optim.preconditioning.scaled_step import (
    flat_and_wide,
    moved_from,
    options_of,
    precondition_moves,
    preconditioned,
)


class Decisions:
    """What the host decides in a graph: learning rates, whether there is a step, and how long it may be."""

    def __init__(self, base: torch.optim.Optimizer, state: ControllerState) -> None:
        self._base, self._state, self._finite = base, state, True

    def before(self, gradient: float) -> list[list[float]]:
        """For each group: the learning rate, that of the long run, and the factor of P², given the length of the gradient."""
        state, rows = self._state, []
        self._finite = math.isfinite(gradient)
        factor = state.factor if math.isnan(state.step) and state.directions else 1.0
        for group, changed in zip(self._base.param_groups, options_of(self._base, state)):
            rate = float(changed.get("lr", group["lr"]))
            rows.append([rate, rate / momentum_of(group).correction, factor])
        return rows

    def after(self, length: float) -> list[list[float]]:
        """What a step of this length is to be multiplied by, and whether it is made."""
        state, finite = self._state, self._finite and math.isfinite(length)
        state.skipped += not finite
        shrink = state.limit / length if finite and length > state.limit else 1.0
        return [[shrink, float(finite and state.step != 0)]]


def compiled_step(
    host: int, base: torch.optim.Optimizer, learnt: PreconditionerState, capturable: Sequence[bool | None]
) -> None:
    """Like `scaled_step`, without reading any number. A step that is not to be made is undone.

    `capturable` is that option of each group, None if there is none: the compiler turns it on, and does not turn it off again.
    """
    groups, params = base.param_groups, params_of(base.param_groups)
    live = [i for i, p in enumerate(params) if p.grad is not None]
    old = _Copies(base, [params[i] for i in live])
    numbers = decide(host, "_before", len(groups), 3, norm([real(g) for g in old.grads]))
    rates, long_run, factors = (column.unbind() for column in numbers.unbind(1))
    which = [i for i, group in enumerate(groups) for _ in group["params"]]
    if adaptive(base):
        _step_with(base, groups, rates)
        shares = [rate * decoupled_decay(base, group) for rate, group in zip(rates, groups)]
        moves = _redirect(host, old, [shares[which[i]] for i in live], live, learnt, params)
    else:
        moves = _scale(host, old, [long_run[which[i]] for i in live], live, learnt, params, factors[0])
        _step_with(base, groups, rates)
    old.restore(moves)
    for group, option in zip(groups, capturable):
        group["capturable"] = option
        if option is None:
            del group["capturable"]


class _Copies:
    """Gradients, parameters and the base's state before a step; in a graph these are values, not copies in memory."""

    def __init__(self, base: torch.optim.Optimizer, params: list[Tensor]) -> None:
        self.params, self.grads = params, [p.grad for p in params if p.grad is not None]
        self.weights, self._grads = [p.detach().clone() for p in params], [g.clone() for g in self.grads]
        entries = [base.state[p] for p in params if p in base.state]
        own = [{k: v for k, v in entry.items() if not str(k).startswith(PREFIX)} for entry in entries]
        self._state = [(t, t.clone()) for entry in own for t in entry.values() if isinstance(t, Tensor)]

    def restore(self, moves: Tensor) -> None:
        """Put back the gradients; and all the rest, unless the step is made."""
        for g, before in zip(self.grads, self._grads):
            g.copy_(before)
        for t, before in [*zip(self.params, self.weights), *self._state]:
            t.copy_(torch.where(moves > 0, t, before))


def _step_with(base: torch.optim.Optimizer, groups: list[dict[str, Any]], rates: Sequence[Tensor]) -> None:
    """The base's own step with these learning rates."""
    before: list[Any] = [group["lr"] for group in groups]
    for group, rate in zip(groups, rates):
        group["lr"] = rate
    bare_step(base)
    for group, rate in zip(groups, before):
        group["lr"] = rate


def _scale(
    host: int,
    old: _Copies,
    rates: list[Tensor],
    live: list[int],
    learnt: PreconditionerState,
    params: list[Tensor],
    factor: Tensor,
) -> Any:
    """Write P²g to the gradients, no longer than the limit; return whether the step is made."""
    scaled: Any = preconditioned([p.grad for p in params], learnt)[0] if learnt.blocks else [p.grad for p in params]
    norms = torch._foreach_norm([widened(real(scaled[i])) for i in live])
    shrink, moves = decide(host, "_after", 1, 2, factor * together([n * r for n, r in zip(norms, rates)]))[0].unbind()
    for i, g in zip(live, old.grads):
        g.copy_(scaled[i] * (shrink * factor))
    return moves


def _redirect(
    host: int,
    old: _Copies,
    decays: list[Tensor],
    live: list[int],
    learnt: PreconditionerState,
    params: list[Tensor],
) -> Any:
    """Change the base's update by P, no longer than the limit; return whether the step is made."""
    moves: list[Tensor | None] = [None] * len(params)
    for i, b, decay in zip(live, old.weights, decays):
        moves[i] = flat_and_wide(params[i].detach() - b) + decay * flat_and_wide(b)
    if learnt.blocks:
        precondition_moves(moves, params, learnt)
    known = [move for move in moves if move is not None]
    shrink, made = decide(host, "_after", 1, 2, norm(known))[0].unbind()
    for p, b, decay, move in zip(old.params, old.weights, decays, known):
        target = moved_from(b, decay, move * shrink)
        p.detach().copy_(target if learnt.blocks else torch.where(shrink < 1, target, p))
    return made
