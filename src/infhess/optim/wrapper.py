"""A torch optimizer around another: shared groups, one state dict, and learnt curvature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from infhess._precision import full_precision, full_precision_step
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, is_plain, plain_map
from infhess.curvature.loss import check_loss, scalar
from infhess.lowrank import Operator
from infhess.optim.base_optimizers import adaptive, bare_step, made_with_rate
from infhess.optim.checkpoint import CurvatureOptimizer, Loss, params_of
from infhess.optim.controllers.context import Decision
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.effect import NO_RATE, ZERO, all_zero, not_finite
from infhess.optim.preconditioning.directions import PREFIX, PreconditionerState, like_of, numbers, split_entries
from infhess.optim.preconditioning.scaled_step import scaled_step
from infhess.optim.sharded import check_whole
from infhess.preconditioners.scaling import Scaling

# The name in a checkpoint of the batches that wait for an estimate, beside "state" and "param_groups".
POOL = "curvature_pool"
# Largest size of all directions together, by default: 1 GiB in single precision.
LARGEST_BASIS = 2**28


class Wrapper(CurvatureOptimizer):
    """Owns what was learnt about curvature; everything else belongs to the base."""

    _linked = False  # whether groups and state are shared with the base
    _published = False  # whether what was learnt is listed in `state`
    _pool: list[Batch]  # batches kept by observe until an estimate is made
    _loaded_pool: list[Batch]  # those of a checkpoint that is being loaded

    def __init__(self, base: torch.optim.Optimizer, rank: int | None, blocks: str) -> None:
        _check_base(base)
        self.base, self.blocks, self._pool, self._loaded_pool = base, blocks, [], []
        super().__init__(base.param_groups, base.defaults)
        self._link(self.param_groups, base.state)
        self.rank = rank or max(1, min(32, LARGEST_BASIS // max(self._size(), 1)))
        self._preconditioner_state = PreconditionerState(self.rank, blocks)
        self._state.base_rate = made_with_rate(self.param_groups)

    @property
    def _state(self) -> ControllerState:
        return self._preconditioner_state.controller

    def _size(self) -> int:
        """Number of real entries in all parameters."""
        return sum(numbers(self._params()))

    def _link(self, groups: list[dict[str, Any]], state: Any) -> None:
        """Share groups and state between the base and the wrapper."""
        self.param_groups = self.base.param_groups = groups
        self.state = self.base.state = state
        self._linked = True

    @property
    @full_precision
    def preconditioner(self) -> Operator:
        """P² as an operator on flat gradients, in the order of the parameters; the identity before the first estimate."""
        return self._preconditioner_state.scaling(self.param_groups).operator()

    @property
    @full_precision
    def due(self) -> bool:
        """Whether curvature along the steps has left the prediction, so that another `update` is due."""
        if not self._state.directions:
            return False
        own, drift = self._preconditioner_state.blocks, self._preconditioner_state.drift
        if drift.bounded() and not self._state.nonconvex:  # in nets steps are bounded by |w|
            return True
        return drift.due(torch.cat([o.values for o in own]), torch.cat([o.gain for o in own]))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base. Everything learnt is forgotten: it was about another set of parameters."""
        if not self._linked:  # called by the constructor, for groups that the base already has
            super().add_param_group(param_group)
            return
        self.base.add_param_group(param_group)
        self.reset()

    def reset(self) -> None:
        """Forget all that was learnt: until the next estimate this equals its base again."""
        self._preconditioner_state.reset(self._state.base_rate)
        self._pool.clear()
        for entry in [entry for entry in self.state.values() if isinstance(entry, dict)]:
            for name in [key for key in entry if str(key).startswith(PREFIX)]:
                del entry[name]
        self._published = False

    def allocate(self) -> None:
        """Allocate directions now: distributed checkpoints only load into tensors that exist."""
        self._preconditioner_state.allocate(self.param_groups)
        if adaptive(self.base) and self._preconditioner_state.root is None:
            self._preconditioner_state.root = torch.ones(self._size()).to(like_of(self._params()))
        self._publish()

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step of the base with preconditioned gradients; the closure runs once, and its loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = self._run(closure) if self._watches_closures else closure()
        self._outside_watch("step")  # a closure may end it, as Lightning's does
        self._effect.unseen(self, self._follows and not self._micro_batches)
        if self._micro_batches:
            self._before_step()
        skipped = self._state.skipped
        if not self._state.active:
            bare_step(self.base)
        else:
            with torch.no_grad():
                scaled_step(self.base, self._preconditioner_state)
        self._effect.stepped(self, self._without_effect(self._state.skipped > skipped))
        if not self._published:
            self._publish()
        return loss

    def _without_effect(self, skipped: bool) -> str | None:
        """Why the step just made has changed nothing; None if it has changed something."""
        grads = [p.grad for p in self._params()]
        if all(g is None for g in grads):
            return self._effect.missing()
        if not self._state.active:  # the base's own step, of which nothing is known
            return None
        if skipped:
            return not_finite(self.param_groups)
        if all_zero(grads):
            return ZERO
        return NO_RATE if self._state.step == 0 else None

    @property
    def _follows(self) -> bool:
        """Whether training passes were seen since the last `update`: more are expected."""
        began = self._state.steps_at_build
        return self._state.steps > (0.0 if math.isnan(began) else began)

    @property
    def _watches_closures(self) -> bool:
        """Whether the closure's training passes are watched, and decide on the steps."""
        raise NotImplementedError

    def _before_step(self) -> None:
        """Called before a step if micro-batches were seen; gradients are final."""
        raise NotImplementedError

    def _install(self, scaling: Scaling) -> None:
        """Put P² into use; the base's momentum, accumulated under another P², is set to zero."""
        for p in self._params():
            for name in ("momentum_buffer", "exp_avg"):
                if isinstance(self.state.get(p, {}).get(name), Tensor):
                    self.state[p][name].zero_()
        self._preconditioner_state.install(self.param_groups, scaling)
        self._published = False

    def _follow(self, decision: Decision) -> None:
        """Apply what a controller or an `update` has decided."""
        state = self._state
        if decision.scaling is not None:
            self._install(decision.scaling)
        if not math.isnan(decision.rate):
            state.active, state.step = 1.0, decision.rate / state.factor
        state.limit, state.momentum = decision.limit, decision.momentum

    def _source(self, loss: Loss, batches: Iterable[Batch], **options: Any) -> Hessian:
        """The curvature of the objective: of −loss if the base maximises. Options are those of `Hessian`."""
        params = self._params()
        check_whole(params, "Preconditioned")
        check_loss(loss)
        signs = {bool(group.get("maximize", False)) for group in self.param_groups}
        if len(signs) > 1:
            raise ValueError("expected all groups to minimise, or all to maximise")
        self._preconditioner_state.check_sizes(params)
        minimised = (lambda batch: -scalar(loss(batch))) if signs.pop() else loss
        return Hessian(minimised, params, batches, **options)

    def _check_rates(self) -> None:
        if not self._state.base_rate > 0:
            raise ValueError(
                f"lr: expected a rate above 0 when the base is made, of whatever size, got {self._state.base_rate:g}; "
                "a measured step is applied relative to it"
            )

    # ---- copies and checkpoints

    def _publish(self) -> None:
        """List what was learnt in `state`, next to the base's own entries, for tools that read a checkpoint's names from there.

        Only once the base has created its state for a parameter: many do so only if there is none at all.
        """
        params = self._params()
        ready = [isinstance(self.base, torch.optim.SGD) or bool(self.state.get(p)) for p in params]
        for p, entries, known in zip(params, self._preconditioner_state.entries(params), ready):
            if known:
                self.state[p].update(entries)
        self._published = all(ready)

    def state_dict(self) -> dict[str, Any]:
        """The base's state and groups; for each parameter directions, gains and scalars; and batches that wait for an estimate.

        While `observe` gathers batches for its next estimate they are under "curvature_pool", so that a run goes on from any
        step bit for bit. `torch.load` with weights_only=True reads tensors in tuples, lists and dicts alone: batches that hold
        anything else, such as dataclasses, are left out, and a run that resumes there waits for new ones.
        """
        base_state, params = self.state, self._params()
        own = zip(params, self._preconditioner_state.entries(params))
        both: Any = {**base_state, **{p: {**base_state.get(p, {}), **entries} for p, entries in own}}
        self.state = both
        try:
            found = super().state_dict()
        finally:
            self.state = base_state
        if self._pool and all(map(is_plain, self._pool)):
            # Copies: a view would be saved with all the data that it is a view of.
            found[POOL] = [plain_map(lambda t: t.detach().clone(), batch) for batch in self._pool]
        return found

    def _accept(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Give the base its part of a checkpoint, and hold back the wrapper's until the base has accepted its own."""
        of_base, own = split_entries(state_dict["state"])
        names = params_of(state_dict["param_groups"])  # a checkpoint has indices instead of parameters
        for name, p in zip(names, self._params()):
            self._preconditioner_state.check(name, p, own.get(name, {}))
        self._incoming = [own.get(name, {}) for name in names]
        self._loaded_pool = list(state_dict.get(POOL, ()))
        return {**state_dict, "state": of_base}

    def _adopt(self, incoming: Any) -> None:
        """Take over what was learnt; if there is nothing, learning rates are those of the bare base."""
        self.reset()
        self._preconditioner_state.adopt(self.param_groups, incoming)
        self._pool, self._loaded_pool = self._loaded_pool, []
        if not any(incoming):
            self._state.base_rate = made_with_rate(self.param_groups)

    def __getstate__(self) -> dict[str, Any]:
        names = ("base", "rank", "blocks", "_preconditioner_state", "_pool", "_loaded_pool")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._published = False
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})
        self._link(self.base.param_groups, self.base.state)


def _check_base(base: Any) -> None:
    if not isinstance(base, torch.optim.Optimizer):
        raise TypeError(f"base: expected a torch.optim.Optimizer, got {type(base).__name__}")
    if isinstance(base, torch.optim.LBFGS | Wrapper):
        raise TypeError(
            f"base: expected an optimizer that takes one gradient per step, such as SGD or Adam, got {type(base).__name__}"
        )
    if any(group.get("differentiable") for group in base.param_groups):
        raise ValueError("base: expected differentiable=False; no graph is kept of a preconditioned step")
