"""A torch optimizer around another: shared groups, one state dict, gradients and rates changed for the time of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from infhess._precision import full_precision_step
from infhess.curvature.flat import length, real
from infhess.optim.base_optimizers import Momentum, decayed, divisor, made_with_rate, momentum_of, reference_rate
from infhess.optim.checkpoint import Checkpointed
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.preconditioning.apply import inside, preconditioned, redirected, shortened
from infhess.optim.preconditioning.directions import PREFIX, PreconditionerState, like_of, parted
from infhess.optim.preconditioning.drift import Drift
from infhess.optim.preconditioning.layers import blocks_of
from infhess.preconditioners.scaling import Scaling

# The most numbers that the directions take by default: 1 GiB in single precision.
LARGEST_BASIS = 2**28


class Wrapper(Checkpointed):
    """The base with gradients (I − U diag(gain) Uᵀ)g and the learning rate step·lr/lr₀; the base itself until it is active.

    It owns what was learnt of curvature; everything else is the base's.
    """

    _settings: tuple[str, ...] = ()  # further attributes to be copied and pickled

    def __init__(self, base: torch.optim.Optimizer, rank: int | None, blocks: str) -> None:
        _checked_base(base)
        self.base, self.blocks, self.rank = base, blocks, rank or default_rank(base)
        self._learnt, self._drift, self._linked = PreconditionerState(self.rank), Drift(), False
        self._published = False  # whether the names of what was learnt are in `state`
        super().__init__(base.param_groups, base.defaults)
        self._link(self.param_groups, base.state)
        self._state.base_rate = made_with_rate(self.param_groups)

    @property
    def _state(self) -> ControllerState:
        return self._learnt.controller

    def _link(self, groups: list[dict[str, Any]], state: Any) -> None:
        """The base and the wrapper share groups and state."""
        self.param_groups = self.base.param_groups = groups
        self.state = self.base.state = state
        self._linked = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One more group for the base, and everything learnt so far is forgotten: it was of another set of parameters."""
        if not self._linked:  # called by the constructor, for groups that the base has already
            super().add_param_group(param_group)
            return
        self.base.add_param_group(param_group)
        self.reset()

    def reset(self) -> None:
        """Forget everything learnt: until the next estimate the wrapper is its base again."""
        self._learnt.reset()
        for entry in self.state.values():
            for name in [key for key in entry if str(key).startswith(PREFIX)]:
                del entry[name]
        self._drift, self._published = Drift(), False

    def allocate(self) -> None:
        """Make room for directions at once: distributed checkpoints restore only what they find a place for."""
        self._learnt.allocate(self._params(), self._blocks())
        if self._adaptive and self._learnt.root is None:
            self._learnt.root = torch.ones(size_of(self.base)).to(like_of(self._params()))
        self._published = False
        self._publish()

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the base with preconditioned gradients; the closure runs once, and its loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = self._run(closure)
        self._before_step()
        if not self._state.active:
            self._base_step()
        else:
            with torch.no_grad():
                self._active_step()
        if not self._published:
            self._publish()
        return loss

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Training's own forward and backward pass."""
        return closure()

    def _before_step(self) -> None:
        """What is left to do once gradients are final."""

    def _finite(self) -> bool:
        """Whether gradients are; a step is counted as skipped where they are not."""
        grads = [real(p.grad) for p in self._params() if p.grad is not None and not p.grad.is_sparse]
        return not grads or self._counts(length([grads]))

    def _counts(self, size: float) -> bool:
        """Whether a length is finite; a step is counted as skipped where it is not."""
        finite = math.isfinite(size)
        self._state.skipped += not finite
        return finite

    def _base_step(self) -> None:
        """Without torch's own bookkeeping of a step, hooks of all optimizers among it: the wrapper's step has done that."""
        base = self.base
        step: Any = type(base).step
        hooked = base._optimizer_step_pre_hooks or base._optimizer_step_post_hooks or "step" in base.__dict__
        if hooked or not hasattr(step, "__wrapped__"):
            with _global_hooks_off():
                base.step()
            return
        step = step.__wrapped__
        if step.__module__.startswith("torch.optim.") and not torch.is_grad_enabled():
            step = getattr(step, "__wrapped__", step)  # the part that would turn autograd off
        step(base)

    def _active_step(self) -> None:
        """A step, where its learning rate is known and the gradient is finite."""
        state, adaptive, params = self._state, self._adaptive, self._params()
        grads = [p.grad for p in params]
        if any(g is not None and g.is_sparse for g in grads):
            raise RuntimeError("Preconditioned does not take sparse gradients; use sparse=False in the embedding")
        # A limited step measures its own length, and that of g need not be known.
        limited = not adaptive and state.step != 0 and state.limit < math.inf
        if not limited and (not self._finite() or state.step == 0):
            return
        options = self._options()
        before = [{name: group[name] for name in changed} for group, changed in zip(self.param_groups, options)]
        try:
            for group, changed in zip(self.param_groups, options):
                group.update(changed)
            (self._redirected_step if adaptive else self._scaled_step)(params, grads)
        finally:
            for p, g in zip(params, grads):
                p.grad = g
            for group, changed in zip(self.param_groups, before):
                group.update(changed)

    def _scaled_step(self, params: list[Tensor], grads: list[Tensor | None]) -> None:
        """The base sees P²g instead of g."""
        state, scaled, seen = self._state, grads, None
        # Where the step is the base's own P² comes with its factor, and else the learning rate does.
        factor = state.factor if math.isnan(state.step) else 1.0
        if state.directions:
            scaled, seen = preconditioned(grads, self._learnt, factor)
        momenta = [momentum_of(group) for group in self.param_groups]
        if state.limit < math.inf:
            # How far a constant gradient moves each parameter in the end.
            groups = zip(self.param_groups, momenta)
            rates = [rate for g, m in groups for rate in [g["lr"] / m.correction] * len(g["params"])]
            scaled, size = shortened(scaled, rates, state.limit)
            if not self._counts(size):
                return
        if seen is not None:
            self._see(seen, momenta[0])
        for p, g in zip(params, scaled):
            p.grad = g
        self._base_step()

    def _redirected_step(self, params: list[Tensor], grads: list[Tensor | None]) -> None:
        """The base sees g, so that its own scaling stays what it is, and what it does to w is bent by P."""
        state = self._state
        if not (state.directions or state.limit < math.inf):
            self._base_step()
            return
        if state.directions:
            self._see(inside(grads, params, self._learnt), momentum_of(self.param_groups[0]))
        before = [None if g is None else p.detach().clone() for p, g in zip(params, grads)]
        decays = [decayed(self.base, group) for group in self.param_groups for _ in group["params"]]
        self._base_step()
        redirected(params, before, decays, self._learnt, state.limit)

    def _see(self, seen: Tensor, momentum: Momentum) -> None:
        """Note down what `due` is to judge by."""
        self._drift.see(seen, self.param_groups[0].get("lr", math.nan), *momentum)

    def _options(self) -> list[dict[str, Any]]:
        """What the base is to find in its groups during a step: step·lr/lr₀ instead of lr."""
        state = self._state
        if math.isnan(state.step):
            return [{} for _ in self.param_groups]
        step, options = state.step * state.factor / self._reference_rate(), []
        for group in self.param_groups:
            changed = {"lr": group["lr"] * (step * momentum_of(group).correction)} if "lr" in group else {}
            if state.momentum and type(self.base) is torch.optim.SGD and not group["momentum"]:
                changed["momentum"] = state.momentum
            options.append(changed)
        return options

    def _reference_rate(self) -> float:
        """lr₀, the learning rate that stands for the measured step."""
        state, groups = self._state, self.param_groups
        if any("initial_lr" in group for group in groups):  # a schedule is at work
            state.scheduled_rate = max(state.scheduled_rate, *(float(g.get("lr", 0.0)) for g in groups))
        return reference_rate(groups, state.base_rate, state.scheduled_rate)

    # ---- copies and checkpoints

    def _publish(self) -> None:
        """Put what was learnt into `state`, beside the base's own, for tools that read the names of a checkpoint off it.

        Not before the base has made its own state of a parameter: many do so only where they find none at all.
        """
        params = self._params()
        ready = [isinstance(self.base, torch.optim.SGD) or bool(self.state.get(p)) for p in params]
        for p, entries, known in zip(params, self._learnt.entries(params), ready):
            if known:
                self.state[p].update(entries)
        self._published = all(ready)

    def state_dict(self) -> dict[str, Any]:
        """The base's state and groups, and beside it for each parameter the directions, gains and scalars."""
        base_state, params = self.state, self._params()
        ours = zip(params, self._learnt.entries(params))
        both: Any = {**base_state, **{p: {**base_state.get(p, {}), **entries} for p, entries in ours}}
        self.state = both
        try:
            return super().state_dict()
        finally:
            self.state = base_state

    def _accept(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Hand the base its part of a checkpoint, and keep ours aside until the base has accepted its own."""
        theirs, ours = parted(state_dict["state"])
        names = self._names(state_dict)
        for name, p in zip(names, self._params()):
            self._learnt.check(name, p, ours.get(name, {}))
        self._incoming = [ours.get(name, {}) for name in names]
        return {**state_dict, "state": theirs}

    def _adopt(self, incoming: Any) -> None:
        """What was learnt, or nothing: then the learning rates are those of a bare base."""
        self._learnt.adopt(self._params(), self._blocks(), incoming)
        if not any(incoming):
            self._state.base_rate = made_with_rate(self.param_groups)
        self._drift, self._published = Drift(), False

    def __getstate__(self) -> dict[str, Any]:
        names = ("base", "rank", "blocks", "_learnt", "_drift", "_linked", *self._settings)
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._published = False
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})
        self._link(self.base.param_groups, self.base.state)

    # ---- between flat vectors and parameters

    @property
    def _adaptive(self) -> bool:
        """Whether the base scales gradients by itself."""
        return divisor(self.base) is not None

    def _blocks(self) -> list[list[int]]:
        named = all("param_names" in group for group in self.param_groups)
        names = [name for group in self.param_groups for name in group["param_names"]] if named else None
        return blocks_of(self._params(), names, self.blocks)

    def _install(self, scaling: Scaling) -> None:
        """Take P² into use; the base's momentum, gathered under another P², is set to zero."""
        for p in self._params():
            for name in ("momentum_buffer", "exp_avg"):
                if isinstance(self.state.get(p, {}).get(name), Tensor):
                    self.state[p][name].zero_()
        self._learnt.install(self._params(), self._blocks(), scaling)
        self._state.active = 1.0
        self._drift, self._published = Drift(), False

    def _scaling(self) -> Scaling:
        """P² as it is in use."""
        return self._learnt.scaling(self._params(), self._blocks())


def default_rank(base: torch.optim.Optimizer) -> int:
    """32, or as many directions as 1 GiB of single precision holds."""
    return max(1, min(32, LARGEST_BASIS // max(size_of(base), 1)))


def size_of(base: torch.optim.Optimizer) -> int:
    """Numbers in all parameters."""
    return sum(real(p.detach()).numel() for group in base.param_groups for p in group["params"])


def _checked_base(base: Any) -> None:
    if not isinstance(base, torch.optim.Optimizer):
        raise TypeError(f"base: expected a torch.optim.Optimizer, got {type(base).__name__}")
    if isinstance(base, torch.optim.LBFGS | Wrapper):
        raise TypeError(
            f"base: expected an optimizer of one gradient a step, such as SGD or Adam, got {type(base).__name__}"
        )
    if any(group.get("differentiable") for group in base.param_groups):
        raise ValueError("base: expected differentiable=False; no graph is kept of a preconditioned step")


@contextmanager
def _global_hooks_off() -> Iterator[None]:
    hooks: list[Any] = [torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks]
    kept = [dict(h) for h in hooks]
    for h in hooks:
        h.clear()
    try:
        yield
    finally:
        for h, before in zip(hooks, kept):
            h.update(before)
