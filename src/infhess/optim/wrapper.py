"""A torch optimizer around another: shared groups, one state dict, gradients and rates changed during a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from infhess._precision import full_precision_step
from infhess.curvature.flat import real
from infhess.optim.base_optimizers import adaptive, bare_step, made_with_rate
from infhess.optim.checkpoint import Checkpointed
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.preconditioning.directions import PREFIX, PreconditionerState, like_of, parted
from infhess.optim.preconditioning.layers import blocks_of
from infhess.optim.preconditioning.scaled_step import scaled_step
from infhess.optim.watching import Watching
from infhess.preconditioners.scaling import Scaling

# The size of all directions together, at most, by default: 1 GiB in single precision.
LARGEST_BASIS = 2**28


class Wrapper(Checkpointed, Watching):
    """The base with gradients (I − U diag(gain) Uᵀ)g and the learning rate step·lr/lr₀; the base itself until it is active.

    It owns what was learnt about curvature; everything else belongs to the base.
    """

    _settings: tuple[str, ...] = ()  # further attributes to be copied and pickled

    def __init__(self, base: torch.optim.Optimizer, rank: int | None, blocks: str) -> None:
        _checked_base(base)
        self.base, self.blocks, self.rank = base, blocks, rank or default_rank(base)
        self._learnt, self._linked = PreconditionerState(self.rank), False
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
        """One more group for the base. Everything learnt so far is forgotten: it was about another set of parameters."""
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
        self._published = False

    def allocate(self) -> None:
        """Allocate directions now: distributed checkpoints restore only what has memory waiting for it."""
        self._learnt.allocate(self._params(), self._blocks())
        if adaptive(self.base) and self._learnt.root is None:
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
        self._outside_watch("step")  # a closure may end it, as Lightning's does
        self._before_step()
        if not self._state.active:
            bare_step(self.base)
        else:
            with torch.no_grad():
                scaled_step(self.base, self._learnt)
        if not self._published:
            self._publish()
        return loss

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Training's own forward and backward pass."""
        return closure()

    def _before_step(self) -> None:
        """What is left to do once gradients are final."""

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
        """Hand the base its part of a checkpoint, and keep the wrapper's until the base has accepted its own."""
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
        self._published = False

    def __getstate__(self) -> dict[str, Any]:
        names = ("base", "rank", "blocks", "_learnt", "_linked", *self._settings)
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._published = False
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})
        self._link(self.base.param_groups, self.base.state)

    # ---- between flat vectors and parameters

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
        self._published = False

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
            f"base: expected an optimizer that takes one gradient per step, such as SGD or Adam, got {type(base).__name__}"
        )
    if any(group.get("differentiable") for group in base.param_groups):
        raise ValueError("base: expected differentiable=False; no graph is kept of a preconditioned step")
