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
from infhess.curvature.flat import real
from infhess.optim.bases import decayed, divisor, inertia
from infhess.optim.blocks import blocks_of
from infhess.optim.drift import Drift
from infhess.optim.learnt import BASIS, Learnt, parted
from infhess.optim.numbers import Numbers
from infhess.optim.scaling import Scaling
from infhess.optim.transform import Handle, inside, preconditioned, redirected, shortened

# The most numbers that the directions take by default: 1 GiB in single precision.
MEMORY = 2**28
# More parameters than this are a net: its curvature is followed, not inferred, and no mean of its iterates is kept.
LARGE = 100_000


class Wrapper(torch.optim.Optimizer):
    """The base with gradients (I − U diag(gain) Uᵀ)g and the rate step·lr/lr₀; the base itself while unarmed.

    It owns what was learnt of curvature; everything else is the base's.
    """

    _settings: tuple[str, ...] = ()  # further attributes to be copied and pickled

    def __init__(self, base: torch.optim.Optimizer, rank: int | None, blocks: str) -> None:
        _checked_base(base)
        self.base, self.blocks, self.rank = base, blocks, rank or default_rank(base)
        self._learnt = Learnt(self.rank, rooted=divisor(base) is not None, averaging=size_of(base) <= LARGE)
        self._pool: list[Any] = []  # batches kept by observe until an estimate is made
        self._drift, self._linked = Drift(), False
        super().__init__(base.param_groups, base.defaults)
        self._link(self.param_groups, base.state)
        self._numbers.base_rate = max(map(_rate, self.param_groups))

    @property
    def _numbers(self) -> Numbers:
        return self._learnt.numbers

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
        self.forget()

    def forget(self) -> None:
        """Forget everything learnt: until the next estimate the wrapper is its base again."""
        self._learnt.forget()
        self._publish()
        self._drift = Drift()
        self._pool.clear()

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the base with preconditioned gradients; the closure runs once, and its loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._numbers.armed:
            self._preconditioned_step()
        else:
            self._base_step()
        self._publish()
        return loss

    def _base_step(self) -> None:
        """Global hooks have run for the wrapper, and are not to run once more for its base."""
        with _global_hooks_off():
            self.base.step()

    def _preconditioned_step(self) -> None:
        params, groups = self._params(), [dict(group) for group in self.param_groups]
        grads = [p.grad for p in params]
        if any(g is not None and g.is_sparse for g in grads):
            raise RuntimeError("Preconditioned does not take sparse gradients; use sparse=False in the embedding")
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
        """The base sees P²g in the place of g."""
        numbers, scaled = self._numbers, grads
        # Where the step is the base's own P² comes with its factor, and else the rate does.
        factor = numbers.factor if math.isnan(numbers.step) else 1.0
        if numbers.directions:
            scaled, seen = preconditioned(grads, self._handles(), self._blocks(), factor)
            self._see(seen)
        if numbers.limit < math.inf:
            rates = [group["lr"] / inertia(group).rest for group in self.param_groups for _ in group["params"]]
            scaled = shortened(scaled, rates, numbers.limit)
        for p, g in zip(self._params(), scaled):
            p.grad = g
        self._base_step()

    def _redirected_step(self, grads: list[Tensor | None]) -> None:
        """The base sees g, so that its own scaling stays what it is, and what it does to w is bent by P."""
        numbers, params = self._numbers, self._params()
        if not (numbers.directions or numbers.limit < math.inf):
            self._base_step()
            return
        handles, blocks = self._handles(), self._blocks() if numbers.directions else []
        if blocks:
            self._see(inside(grads, handles, blocks))
        before = [None if g is None else p.detach().clone() for p, g in zip(params, grads)]
        decays = [decayed(self.base, group) for group in self.param_groups for _ in group["params"]]
        self._base_step()
        redirected(params, before, decays, handles, blocks, numbers.limit)

    def _handles(self) -> list[Handle]:
        return [self._learnt.handle(p) for p in self._params()]

    def _see(self, seen: list[Tensor]) -> None:
        """Note down what `due` is to judge by."""
        group = self.param_groups[0]
        self._drift.see(torch.cat(seen), group.get("lr", math.nan), *inertia(group))

    def _options(self) -> list[dict[str, Any]]:
        """What the base is to find in its groups during a step: step·lr/lr₀ in the place of lr."""
        numbers, options = self._numbers, []
        for group in self.param_groups:
            if math.isnan(numbers.step) or "lr" not in group:
                options.append({name: group[name] for name in ("lr",) if name in group})
                continue
            scale = numbers.step * numbers.factor * inertia(group).rest / numbers.base_rate
            options.append({"lr": group["lr"] * scale})
            if numbers.momentum and type(self.base) is torch.optim.SGD and not group["momentum"]:
                options[-1]["momentum"] = numbers.momentum
        return options

    # ---- copies and checkpoints

    def _publish(self) -> None:
        """Put what was learnt into `state`, beside the base's own, for tools that read checkpoints off it.

        Not before the base has made its own state of a parameter: many do so only where they find none at all.
        """
        for p in self._params():
            ready = isinstance(self.base, torch.optim.SGD) or self.state.get(p)
            if ready and self.state[p].get(BASIS) is not self._learnt.of(p)["basis"]:
                self.state[p].update(self._learnt.entries(p))

    def state_dict(self) -> dict[str, Any]:
        """The base's state and groups, and beside it for each parameter the directions, gains and scalars."""
        for p in self._params():
            if self.state.get(p):
                self.state[p].update(self._learnt.entries(p))
        packed = super().state_dict()
        names = [name for group in packed["param_groups"] for name in group["params"]]
        learnt = {name: self._learnt.entries(p) for name, p in zip(names, self._params()) if not self.state.get(p)}
        return {**packed, "state": {**packed["state"], **learnt}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a checkpoint, of this wrapper or of its bare base (nothing is learnt then)."""
        handle = self.register_load_state_dict_pre_hook(_split)  # after the user's own hooks
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._incoming: dict[Tensor, dict[str, Tensor]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("base", "rank", "blocks", "_learnt", "_drift", "_pool", "_linked", *self._settings)
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})
        self._link(self.base.param_groups, self.base.state)
        incoming = self.__dict__.get("_incoming")
        if incoming is not None:
            self._learnt.adopt(incoming)
            self._drift = Drift()
            self._pool.clear()
        self._publish()

    # ---- between flat vectors and parameters

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _sizes(self) -> list[int]:
        """Numbers in each block."""
        params = self._params()
        return [sum(real(params[i].detach()).numel() for i in block) for block in self._blocks()]

    def _w(self) -> Tensor:
        """The parameters, flat."""
        parts = [real(p.detach()).reshape(-1) for p in self._params()]
        return torch.cat([p.to(parts[0].device, torch.promote_types(p.dtype, torch.float32)) for p in parts])

    @property
    def _adaptive(self) -> bool:
        """Whether the base scales gradients by itself."""
        return self._learnt.rooted

    def _blocks(self) -> list[list[int]]:
        named = all("param_names" in group for group in self.param_groups)
        names = [name for group in self.param_groups for name in group["param_names"]] if named else None
        return blocks_of(self._params(), names, self.blocks)

    def _install(self, scaling: Scaling, step: float, limit: float = math.inf) -> None:
        """Take P² and the step into use; the base's momentum, gathered under another P², is set to zero."""
        for p in self._params():
            for name in ("momentum_buffer", "exp_avg"):
                if isinstance(self.state.get(p, {}).get(name), Tensor):
                    self.state[p][name].zero_()
        self._learnt.install(self._params(), self._blocks(), scaling)
        self._numbers.armed, self._numbers.step, self._numbers.limit = 1.0, step, limit
        self._drift = Drift()

    def _scaling(self) -> Scaling:
        """P² as it is in use."""
        return self._learnt.scaling(self._params(), self._blocks())


def _split(opt: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Hand the base its part of a checkpoint, and keep ours aside until the base has accepted its own."""
    assert isinstance(opt, Wrapper)
    theirs, ours = parted(state_dict["state"])
    names = [name for group in state_dict["param_groups"] for name in group["params"]]
    pairs = list(zip(names, opt._params()))
    for name, p in pairs:
        opt._learnt.check(name, p, ours.get(name, {}))
    opt._incoming = {p: ours.get(name, {}) for name, p in pairs}
    return {**state_dict, "state": theirs}


def _rate(group: dict[str, Any]) -> float:
    """The rate that a group was made with, also where a schedule is at work on it already."""
    return float(group.get("max_lr", group.get("initial_lr", group.get("lr", math.nan))))


def default_rank(base: torch.optim.Optimizer) -> int:
    """32, or as many directions as 1 GiB of single precision holds."""
    return max(1, min(32, MEMORY // max(size_of(base), 1)))


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
