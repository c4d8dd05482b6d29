"""A torch optimizer around another: shared groups, one state dict, gradients and rates changed for the time of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from infhess._checks import small_dtype
from infhess.curvature.flat import real
from infhess.optim.bases import divisor, inertia
from infhess.optim.blocks import blocks_of
from infhess.optim.drift import Drift
from infhess.optim.numbers import Numbers
from infhess.optim.scaling import Block, Scaling
from infhess.optim.transform import Own, preconditioned, shortened

PREFIX = "curvature_"
# The most numbers that the directions take by default: 1 GiB in single precision.
MEMORY = 2**28


class Wrapper(torch.optim.Optimizer):
    """The base with gradients R⁻¹(I − U diag(gain) Uᵀ)R g and the rate step·lr/lr₀; the base itself while unarmed.

    It owns the directions U of each parameter and a few scalars; everything else is the base's.
    """

    _settings: tuple[str, ...] = ()  # further attributes to be copied and pickled

    def __init__(self, base: torch.optim.Optimizer, rank: int | None, blocks: str) -> None:
        _checked_base(base)
        self.base, self.rank, self.blocks = base, rank or default_rank(base), blocks
        self._own: dict[Tensor, Own] = {}
        self._rates: list[float] = []  # lr₀ of each group
        self._pool: list[Any] = []  # batches kept by observe until an estimate is made
        self._numbers, self._drift, self._linked = Numbers(), Drift(), False
        super().__init__(base.param_groups, base.defaults)
        self._link(self.param_groups, base.state)
        for group in self.param_groups:
            self._allocate(group)

    def _link(self, groups: list[dict[str, Any]], state: Any) -> None:
        """The base and the wrapper share groups and state."""
        self.param_groups = self.base.param_groups = groups
        self.state = self.base.state = state
        self._linked = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One more group for the base; its parameters are not preconditioned before the next estimate."""
        if not self._linked:  # called by the constructor, for groups that the base has already
            super().add_param_group(param_group)
            return
        self.base.add_param_group(param_group)
        self._allocate(self.param_groups[-1])

    def _allocate(self, group: dict[str, Any]) -> None:
        """Null directions of the final shape, so that checkpoints and compiled steps always find the same tensors."""
        self._rates.append(float(group.get("initial_lr", group.get("lr", float("nan")))))
        for p in group["params"]:
            parts = real(p.detach())
            dtype = torch.promote_types(parts.dtype, torch.float32)
            small = torch.zeros(self.rank, dtype=small_dtype(p.device), device=p.device)
            self._own[p] = {
                "basis": parts.new_zeros((self.rank, *parts.shape), dtype=dtype),
                "gain": small,
                "values": small.clone(),
            }
            if self._adaptive:
                self._own[p]["root"] = torch.ones_like(parts, dtype=dtype)

    def zero_out(self) -> None:
        """Forget everything learnt: the wrapper is its base again."""
        for own in self._own.values():
            for name, value in own.items():
                value.fill_(1.0 if name == "root" else 0.0)
        self._numbers, self._drift = Numbers(), Drift()

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
        return loss

    def _base_step(self) -> None:
        """Global hooks have run for the wrapper, and are not to run once more for its base."""
        with _global_hooks_off():
            self.base.step()

    def _preconditioned_step(self) -> None:
        params, before = self._params(), [dict(group) for group in self.param_groups]
        grads = [p.grad for p in params]
        try:
            with torch.no_grad():
                for p, g in zip(params, self._scaled(grads)):
                    p.grad = g
                for group, options in zip(self.param_groups, self._options()):
                    group.update(options)
            self._base_step()
        finally:
            for p, g in zip(params, grads):
                p.grad = g
            for group, options in zip(self.param_groups, before):
                group.update({name: options[name] for name in ("lr", "momentum") if name in options})

    def _scaled(self, grads: list[Tensor | None]) -> list[Tensor | None]:
        """Gradients as the base is to see them."""
        if any(g is not None and g.is_sparse for g in grads):
            raise RuntimeError("Preconditioned does not take sparse gradients; use sparse=False in the embedding")
        params, numbers = self._params(), self._numbers
        own = [self._own[p] for p in params]
        scaled, seen = preconditioned(grads, own, self._blocks())
        self._watch(seen, own)
        if math.isnan(numbers.step) and not self._adaptive and numbers.factor != 1:
            scaled = [None if g is None else g * numbers.factor for g in scaled]
        if numbers.limit < math.inf and not self._adaptive:
            options = self._options()
            rates = [o["lr"] for o, group in zip(options, self.param_groups) for _ in group["params"]]
            scaled = shortened(scaled, rates, numbers.limit)
        return scaled

    def _options(self) -> list[dict[str, Any]]:
        """What the base is to find in its groups during a step: step·lr/lr₀ in the place of lr."""
        numbers, options = self._numbers, []
        for group, rate in zip(self.param_groups, self._rates):
            if math.isnan(numbers.step) or "lr" not in group:
                options.append({name: group[name] for name in ("lr",) if name in group})
                continue
            scale = numbers.step * numbers.factor * inertia(group).rest / rate
            options.append({"lr": group["lr"] * scale})
            if numbers.momentum and type(self.base) is torch.optim.SGD and not group["momentum"]:
                options[-1]["momentum"] = numbers.momentum
        return options

    def _watch(self, seen: list[Tensor], own: list[Own]) -> None:
        """Keep track of the curvature along the steps, for `due`."""
        group, blocks = self.param_groups[0], self._blocks()
        rate = self._options()[0].get("lr", float("nan"))
        values = torch.cat([own[b[0]]["values"] for b in blocks])
        gain = torch.cat([own[b[0]]["gain"] for b in blocks])
        self._drift.see(torch.cat(seen), values, gain, rate, *inertia(group))

    def state_dict(self) -> dict[str, Any]:
        """The base's state and groups, and beside it for each parameter the directions, gains and scalars."""
        packed = super().state_dict()
        state, i = dict(packed["state"]), 0
        for group, rate in zip(self.param_groups, self._rates):
            numbers = torch.cat([torch.tensor([rate], dtype=torch.float64), self._numbers.tensor()])
            for p in group["params"]:
                own = {**self._own[p], "numbers": numbers.clone()}
                state[i] = {**state.get(i, {}), **{PREFIX + name: value for name, value in own.items()}}
                i += 1
        return {**packed, "state": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a checkpoint, of this wrapper or of its bare base (nothing is learnt then)."""
        theirs, by_name = _parted(state_dict["state"])
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        ours = [by_name.get(name, {}) for name in names]
        for name, p, own in zip(names, self._params(), ours):
            _same_shapes(name, own, self._own[p])
        super().load_state_dict({**state_dict, "state": theirs})
        self.zero_out()
        for p, own in zip(self._params(), ours):
            for name, value in own.items():
                if name != "numbers":
                    self._own[p][name] = value.detach().to(self._own[p][name], copy=True)
        if all(ours):
            numbers = [ours[i]["numbers"] for i in self._firsts()]
            self._rates = [float(n[0]) for n in numbers]
            self._numbers = Numbers.of(numbers[0][1:])

    def _firsts(self) -> list[int]:
        """The index of the first parameter of each group."""
        sizes = [len(group["params"]) for group in self.param_groups]
        return [sum(sizes[:i]) for i in range(len(sizes))]

    def __getstate__(self) -> dict[str, Any]:
        names = ("base", "rank", "blocks", "_own", "_numbers", "_drift", "_rates", "_pool", "_linked")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in (*names, *self._settings)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})
        self._link(self.base.param_groups, self.base.state)

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
        return divisor(self.base) is not None

    def _blocks(self) -> list[list[int]]:
        named = all("param_names" in group for group in self.param_groups)
        names = [name for group in self.param_groups for name in group["param_names"]] if named else None
        return blocks_of(self._params(), names, self.blocks)

    def _install(self, scaling: Scaling, step: float, limit: float = math.inf) -> None:
        """Take P² and the step into use; the base's momentum, gathered under another P², is set to zero."""
        params = self._params()
        for p in params:
            for name in ("momentum_buffer", "exp_avg"):
                if isinstance(self.state.get(p, {}).get(name), Tensor):
                    self.state[p][name].zero_()
        root = None if scaling.root is None else iter(torch.split(scaling.root, [real(p).numel() for p in params]))
        for block, indices in zip(scaling.blocks, self._blocks()):
            rows = torch.split(block.U, [real(params[i].detach()).numel() for i in indices])
            for i, U in zip(indices, rows):
                own, k = self._own[params[i]], U.shape[1]
                for name, small in (("gain", block.gain), ("values", block.values)):
                    own[name].zero_()[:k] = small.to(own[name])
                own["basis"].zero_()[:k] = U.mT.reshape(k, *own["basis"].shape[1:]).to(own["basis"])
                if root is not None:
                    own["root"].copy_(next(root).view_as(own["root"]))
        self._numbers.armed, self._numbers.factor = 1.0, scaling.factor
        self._numbers.step, self._numbers.limit, self._drift = step, limit, Drift()

    def _scaling(self) -> Scaling:
        """P² as it is in use."""
        params, blocks = self._params(), []
        for indices in self._blocks():
            own = [self._own[params[i]] for i in indices]
            keep = own[0]["gain"] != 0
            U = torch.cat([o["basis"].flatten(1) for o in own], 1)[keep].mT
            blocks.append(Block(U, own[0]["gain"][keep], own[0]["values"][keep]))
        roots = [o["root"].reshape(-1) for o in (self._own[p] for p in params) if "root" in o]
        return Scaling(blocks, self._numbers.factor, torch.cat(roots) if roots else None)


def default_rank(base: torch.optim.Optimizer) -> int:
    """32, or as many directions as 1 GiB of single precision holds."""
    size = sum(real(p.detach()).numel() for group in base.param_groups for p in group["params"])
    return max(1, min(32, MEMORY // max(size, 1)))


def _checked_base(base: Any) -> None:
    if not isinstance(base, torch.optim.Optimizer):
        raise TypeError(f"base: expected a torch.optim.Optimizer, got {type(base).__name__}")
    if isinstance(base, torch.optim.LBFGS | Wrapper):
        raise TypeError(
            f"base: expected an optimizer of one gradient a step, such as SGD or Adam, got {type(base).__name__}"
        )


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


def _parted(state: dict[Any, dict[str, Any]]) -> tuple[dict[Any, dict[str, Any]], dict[Any, dict[str, Tensor]]]:
    """The base's entries and ours."""
    theirs, ours = {}, {}
    for i, entry in state.items():
        own = {name[len(PREFIX) :]: value for name, value in entry.items() if name.startswith(PREFIX)}
        rest = {name: value for name, value in entry.items() if not name.startswith(PREFIX)}
        if own:
            ours[i] = own
        if rest or not own:
            theirs[i] = rest
    return theirs, ours


def _same_shapes(name: Any, given: dict[str, Tensor], own: Own) -> None:
    expected = {name: tuple(value.shape) for name, value in own.items()}
    got = {name: tuple(value.shape) for name, value in given.items() if name != "numbers"}
    if given and got != expected:
        raise ValueError(
            f"state_dict: parameter {name} was saved with {got}, expected {expected}; make the optimizer with the rank, "
            "the base and the parameters that it was saved with"
        )
