"""What the wrapper has to know about the optimizer that it wraps: its diagonal scaling and its momentum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from infhess.curvature.flat import real

# Weight decay by more than this share of the weights per step is worth a note.
MUCH = 0.01

Group = dict[str, Any]
State = dict[str, Any]


class Momentum(NamedTuple):
    """The base optimizer moves along v ← decay·v + weight·g."""

    decay: float
    weight: float

    @property
    def correction(self) -> float:
        """Factor on the learning rate that makes a constant gradient move w as far as without momentum."""
        return (1 - self.decay) / self.weight if self.weight else 1.0


def momentum_of(group: Group) -> Momentum:
    """Heavy-ball momentum (SGD, RMSprop) or the moving average of gradients (Adam and its relatives)."""
    if group.get("momentum"):
        return Momentum(float(group["momentum"]), 1 - float(group.get("dampening", 0.0)))
    if "betas" in group:
        beta = float(group["betas"][0])
        return Momentum(beta, 1 - beta)
    return Momentum(0.0, 1.0)


def moved(state: State) -> bool:
    """Whether the base has made a step with this parameter."""
    return bool(state) and float(state.get("step", 0)) > 0


def _root(v: Tensor, group: Group) -> Tensor:
    return v.sqrt() + float(group["eps"])


def _adam(state: State, group: Group, squares: Tensor | None) -> Tensor:
    v, beta, age = real(state["exp_avg_sq"]), float(group["betas"][1]), float(state["step"])
    if squares is not None:
        v, age = torch.lerp(squares, v.to(squares), beta), age + 1
    if "max_exp_avg_sq" in state:
        v = torch.maximum(v, real(state["max_exp_avg_sq"]).to(v))
    return _root(v / (1 - beta**age), group)


def _adamax(state: State, group: Group, squares: Tensor | None) -> Tensor:
    most: Tensor = real(state["exp_inf"])
    if squares is None:
        return most
    return torch.maximum(float(group["betas"][1]) * most.to(squares), _root(squares, group))


def _rmsprop(state: State, group: Group, squares: Tensor | None) -> Tensor:
    v = real(state["square_avg"])
    if "grad_avg" in state:  # squared gradients do not give the next mean, so both averages are used as they stand
        v = (v - real(state["grad_avg"]).to(v).square()).clamp(min=0)
    elif squares is not None:
        v = torch.lerp(squares, v.to(squares), float(group["alpha"]))
    return _root(v, group)


def _adagrad(state: State, group: Group, squares: Tensor | None) -> Tensor:
    total = real(state["sum"])
    return _root(total if squares is None else total.to(squares) + squares, group)


# What a gradient is divided by, from a parameter's state; at the coming step if the squares of its gradient are given.
Divisor = Callable[[State, Group, Tensor | None], Tensor]
DIVISORS: dict[type, Divisor | None] = {
    torch.optim.SGD: None,
    torch.optim.ASGD: None,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.NAdam: _adam,
    torch.optim.Adamax: _adamax,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adagrad: _adagrad,
}


def divisor(base: torch.optim.Optimizer) -> Divisor | None:
    """How the base scales gradients; None if it does not, or in an unknown way (RAdam starts without scaling)."""
    for kind in type(base).__mro__:
        if kind in DIVISORS:
            return DIVISORS[kind]
    return None


def adaptive(base: torch.optim.Optimizer) -> bool:
    """Whether the base scales gradients by itself."""
    return divisor(base) is not None


def rate_is_known(base: torch.optim.Optimizer) -> bool:
    """Whether w moves by −lr times a known scaling of the gradient, so that a measured step can replace lr."""
    return not DIVISORS.keys().isdisjoint(type(base).__mro__)


def sqrt_scaling(base: torch.optim.Optimizer, like: Tensor, squares: Tensor | None = None) -> Tensor | None:
    """R = D^{½} as a flat vector, with D the base's own scaling of gradients; None if it has none.

    `squares`, flat, are the squares of a gradient, or their mean over a few: D is then that of the coming step. They are
    needed for parameters that the base has not moved yet.
    """
    rule = divisor(base)
    if rule is None:
        return None
    parts: list[Tensor] = []
    seen: list[Tensor] = []
    for group, p, state, part in _each(base, squares):
        here = None if part is None else part.view_as(real(p.detach()))
        known = moved(state) or "sum" in state  # Adagrad's sum may start above zero
        parts.append((rule(state, group, here) if known else _first(group, here)).reshape(-1).to(like))
        seen.append(parts[-1] > 2 * float(group.get("eps", 0.0)))
    D, alive = torch.cat(parts), torch.cat(seen)
    # An entry whose gradient has always been zero has no scale: it gets the smallest scaling among the others.
    floor = D[alive].max() if bool(alive.any()) else D.new_ones(())
    return torch.where(alive, D, floor).rsqrt()


def _each(base: torch.optim.Optimizer, v: Tensor | None) -> Iterator[tuple[Group, Tensor, State, Tensor | None]]:
    """Each parameter with its group, its state, and its slice of a flat vector."""
    start = 0
    for group in base.param_groups:
        for p in group["params"]:
            end = start + real(p.detach()).numel()
            yield group, p, base.state.get(p, {}), None if v is None else v[start:end]
            start = end


def _first(group: Group, squares: Tensor | None) -> Tensor:
    """The divisor at the first step."""
    assert squares is not None
    return _root((1 - float(group["alpha"])) * squares if "alpha" in group else squares, group)


def direction(base: torch.optim.Optimizer, g: Tensor) -> Tensor:
    """The flat direction of the base's next move before scaling: its average of gradients, or g if it keeps none."""
    parts = [(part, state, group) for group, _, state, part in _each(base, g) if part is not None]
    return torch.cat([_averaged(*part) if "betas" in part[2] else part[0] for part in parts])


def _averaged(g: Tensor, state: State, group: Group) -> Tensor:
    """The bias-corrected average of gradients at the coming step; NAdam's looks one step further ahead than Adam's."""
    beta, age = float(group["betas"][0]), float(state.get("step", 0)) + 1
    before = real(state["exp_avg"]).reshape(-1).to(g) if "exp_avg" in state else torch.zeros_like(g)
    m = torch.lerp(g, before, beta)
    if "momentum_decay" not in group:
        return m / (1 - math.pow(beta, age))
    now, then = (beta * (1 - 0.5 * math.pow(0.96, t * float(group["momentum_decay"]))) for t in (age, age + 1))
    product = float(state.get("mu_product", 1.0)) * now
    return g * (1 - now) / (1 - product) + m * then / (1 - product * then)


def decay(base: torch.optim.Optimizer, root: Tensor | None) -> float:
    """What weight decay adds to the curvature along a step: it acts outside P, but inside Adam's scaling if it is coupled."""
    found = 0.0
    for group in base.param_groups:
        coupled = root is not None and not _decoupled(base, group)
        scale = float(root.square().max()) if coupled and root is not None else 1.0
        found = max(found, scale * float(group.get("weight_decay") or 0.0))
    return found


def note_on_decay(base: torch.optim.Optimizer, rate: float, root: Tensor | None) -> tuple[str, ...]:
    """A note if a step at this rate removes much of w by weight decay."""
    share = rate * decay(base, root)
    if not share > MUCH:
        return ()
    return (
        f"weight decay takes {share:.0%} off the weights at each step: it acts outside of P, at a rate of {rate:.3g}; if it "
        "stands for a penalty, put that into the loss",
    )


def decayed(base: torch.optim.Optimizer, group: Group) -> float:
    """The share of w that one step removes by decoupled weight decay."""
    return float(group["lr"]) * float(group.get("weight_decay") or 0.0) if _decoupled(base, group) else 0.0


def _decoupled(base: torch.optim.Optimizer, group: Group) -> bool:
    return bool(group.get("decoupled_weight_decay", isinstance(base, torch.optim.AdamW)))


def reference_rate(groups: list[Group], made_with: float, scheduled: float) -> float:
    """The learning rate lr₀ that counts as 1: a measured step is multiplied by lr/lr₀.

    Without a schedule it is the lr that the base was made with. With a schedule it is the largest lr known: the first one,
    `max_lr` if the schedule has it (OneCycleLR), or `scheduled`, the largest so far (CyclicLR).
    """
    named = [float(group["max_lr"]) for group in groups if "max_lr" in group]
    first = [float(group["initial_lr"]) for group in groups if "initial_lr" in group]
    return max(named or [*first, scheduled]) or made_with if named or first else made_with


def made_with_rate(groups: list[Group]) -> float:
    """The largest initial learning rate of the groups, also if a schedule has already changed them."""
    return max(float(group["initial_lr"] if "initial_lr" in group else group.get("lr", math.nan)) for group in groups)


def bare_step(base: torch.optim.Optimizer) -> None:
    """A step without torch's bookkeeping, such as global hooks: the wrapper around the base has already done that."""
    step: Any = type(base).step
    hooked = base._optimizer_step_pre_hooks or base._optimizer_step_post_hooks or "step" in base.__dict__
    if hooked or not hasattr(step, "__wrapped__"):
        with _global_hooks_off():
            base.step()
        return
    step = step.__wrapped__
    if step.__module__.startswith("torch.optim.") and not torch.is_grad_enabled():
        step = getattr(step, "__wrapped__", step)  # unwrap the decorator that would turn autograd off
    step(base)


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
