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
from infhess.optim.base_optimizers import decayed, divisor, made_with_rate, momentum_of, reference_rate
from infhess.optim.checkpoint import Checkpointed
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.preconditioning.apply import inside, preconditioned, redirected, shortened
from infhess.optim.preconditioning.directions import NUMBERS, PreconditionerState, Views, parted
from infhess.optim.preconditioning.drift import Drift
from infhess.optim.preconditioning.layers import blocks_of
from infhess.scaling import Scaling

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
            for name in [key for key in entry if str(key).startswith("curvature_")]:
                del entry[name]
        self._drift = Drift()

    def allocate(self) -> None:
        """Make room for directions at once: distributed checkpoints restore only what they find a place for."""
        for p in self._params():
            self._learnt.allocate(p, root=self._adaptive)
            if NUMBERS in self.state.get(p, {}):
                self.state[p].update(self._learnt.entries(p))
        self._publish()

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the base with preconditioned gradients; the closure runs once, and its loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._before_step()
        if not self._state.active:
            self._base_step()
        elif self._may_step():
            self._active_step()
        self._publish()
        return loss

    def _before_step(self) -> None:
        """What is left to do once gradients are final."""

    def _may_step(self) -> bool:
        """Whether a learning rate is known, and the gradient is finite."""
        grads = [p.grad for p in self._params() if p.grad is not None]
        if any(g.is_sparse for g in grads):
            raise RuntimeError("Preconditioned does not take sparse gradients; use sparse=False in the embedding")
        if grads and not math.isfinite(length([[real(g) for g in grads]])):
            self._state.skipped += 1
            return False
        return self._state.step != 0

    def _base_step(self) -> None:
        """Global hooks have run for the wrapper, and are not to run once more for its base."""
        with _global_hooks_off():
            self.base.step()

    def _active_step(self) -> None:
        params, groups = self._params(), [dict(group) for group in self.param_groups]
        grads = [p.grad for p in params]
        try:
            for group, options in zip(self.param_groups, self._options()):
                group.update(options)
            with torch.no_grad():
                if self._adaptive:
                    self._redirected_step(grads)
                else:
                    self._scaled_step(grads)
        finally:
            for p, g in zip(params, grads):
                p.grad = g
            for group, options in zip(self.param_groups, groups):
                group.update({name: options[name] for name in ("lr", "momentum") if name in options})

    def _scaled_step(self, grads: list[Tensor | None]) -> None:
        """The base sees P²g instead of g."""
        state, scaled = self._state, grads
        # Where the step is the base's own P² comes with its factor, and else the learning rate does.
        factor = state.factor if math.isnan(state.step) else 1.0
        if state.directions:
            scaled, seen = preconditioned(grads, self._views(), self._blocks(), factor)
            self._see(seen)
        if state.limit < math.inf:
            rates = [
                group["lr"] / momentum_of(group).correction for group in self.param_groups for _ in group["params"]
            ]
            scaled = shortened(scaled, rates, state.limit)
        for p, g in zip(self._params(), scaled):
            p.grad = g
        self._base_step()

    def _redirected_step(self, grads: list[Tensor | None]) -> None:
        """The base sees g, so that its own scaling stays what it is, and what it does to w is bent by P."""
        state, params = self._state, self._params()
        if not (state.directions or state.limit < math.inf):
            self._base_step()
            return
        views, blocks = (self._views(), self._blocks()) if state.directions else ([], [])
        if blocks:
            self._see(inside(grads, views, blocks))
        before = [None if g is None else p.detach().clone() for p, g in zip(params, grads)]
        decays = [decayed(self.base, group) for group in self.param_groups for _ in group["params"]]
        self._base_step()
        redirected(params, before, decays, views, blocks, state.limit)

    def _views(self) -> list[Views]:
        return [self._learnt.views(p) for p in self._params()]

    def _see(self, seen: list[Tensor]) -> None:
        """Note down what `due` is to judge by."""
        group = self.param_groups[0]
        self._drift.see(torch.cat(seen), group.get("lr", math.nan), *momentum_of(group))

    def _options(self) -> list[dict[str, Any]]:
        """What the base is to find in its groups during a step: step·lr/lr₀ instead of lr."""
        state, options = self._state, []
        reference = math.nan if math.isnan(state.step) else self._reference_rate()
        for group in self.param_groups:
            if math.isnan(state.step) or "lr" not in group:
                options.append({name: group[name] for name in ("lr",) if name in group})
                continue
            scale = state.step * state.factor * momentum_of(group).correction / reference
            options.append({"lr": group["lr"] * scale})
            if state.momentum and type(self.base) is torch.optim.SGD and not group["momentum"]:
                options[-1]["momentum"] = state.momentum
        return options

    def _reference_rate(self) -> float:
        """lr₀, the learning rate that stands for the measured step."""
        state = self._state
        if any("initial_lr" in group for group in self.param_groups):  # a schedule is at work
            state.scheduled_rate = max(state.scheduled_rate, *(float(g.get("lr", 0.0)) for g in self.param_groups))
        return reference_rate(self.param_groups, state.base_rate, state.scheduled_rate)

    # ---- copies and checkpoints

    def _publish(self) -> None:
        """Put what was learnt into `state`, beside the base's own, for tools that read checkpoints off it.

        Not before the base has made its own state of a parameter: many do so only where they find none at all.
        """
        for p in self._params():
            ready = isinstance(self.base, torch.optim.SGD) or self.state.get(p)
            if ready and NUMBERS not in self.state[p]:
                self.state[p].update(self._learnt.entries(p))

    def state_dict(self) -> dict[str, Any]:
        """The base's state and groups, and beside it for each parameter the directions, gains and scalars."""
        for p in self._params():
            if self.state.get(p):
                self.state[p].update(self._learnt.entries(p))
        packed = super().state_dict()
        learnt = {
            name: self._learnt.entries(p)
            for name, p in zip(self._names(packed), self._params())
            if not self.state.get(p)
        }
        return {**packed, "state": {**packed["state"], **learnt}}

    def _accept(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Hand the base its part of a checkpoint, and keep ours aside until the base has accepted its own."""
        theirs, ours = parted(state_dict["state"])
        pairs = list(zip(self._names(state_dict), self._params()))
        for name, p in pairs:
            self._learnt.check(name, p, ours.get(name, {}))
        self._incoming = {p: ours.get(name, {}) for name, p in pairs}
        return {**state_dict, "state": theirs}

    def _adopt(self, incoming: Any) -> None:
        """What was learnt, or nothing: then the learning rates are those of a bare base."""
        self._learnt.adopt(incoming)
        if not any(incoming.values()):
            self._state.base_rate = made_with_rate(self.param_groups)
        self._drift = Drift()

    def __getstate__(self) -> dict[str, Any]:
        names = ("base", "rank", "blocks", "_learnt", "_drift", "_linked", *self._settings)
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})
        self._link(self.base.param_groups, self.base.state)
        self._publish()

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
        for p in self._params():
            if NUMBERS in self.state.get(p, {}):
                self.state[p].update(self._learnt.entries(p))
        self._state.active = 1.0
        self._drift = Drift()

    def _scaling(self) -> Scaling:
        """P² as it is in use."""
        parts = [real(p.detach()) for p in self._params()]
        like = parts[0].new_empty(0, dtype=torch.promote_types(parts[0].dtype, torch.float32))
        return self._learnt.scaling(self._params(), self._blocks(), like)


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
