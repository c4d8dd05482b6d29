"""What the wrapper has to know of the optimizer that it wraps: its own diagonal scaling, and its momentum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess.curvature.flat import real

Group = dict[str, Any]


class Inertia(NamedTuple):
    """The base moves along v ← decay·v + weight·g."""

    decay: float
    weight: float

    @property
    def rest(self) -> float:
        """What a rate is multiplied by so that a constant gradient moves as far as without momentum."""
        return (1 - self.decay) / self.weight if self.weight else 1.0


def inertia(group: Group) -> Inertia:
    """Of heavy-ball momentum (SGD, RMSprop) or of a moving average (Adam and its relatives)."""
    if group.get("momentum"):
        return Inertia(float(group["momentum"]), 1 - float(group.get("dampening", 0.0)))
    if "betas" in group:
        beta = float(group["betas"][0])
        return Inertia(beta, 1 - beta)
    return Inertia(0.0, 1.0)


def moved(state: dict[str, Any]) -> bool:
    """Whether the base has made a step with this parameter."""
    return bool(state) and float(state.get("step", 0)) > 0


def _root(v: Tensor, group: Group) -> Tensor:
    return v.sqrt() + float(group["eps"])


def _adam(state: dict[str, Any], group: Group, squares: Tensor) -> Tensor:
    if not moved(state):
        return _root(squares, group)
    v = state["max_exp_avg_sq" if "max_exp_avg_sq" in state else "exp_avg_sq"]
    age = float(state.get("step", 1))
    corrected: Tensor = real(v) / (1 - float(group["betas"][1]) ** age)
    return _root(corrected, group)


def _adamax(state: dict[str, Any], group: Group, squares: Tensor) -> Tensor:
    return real(state["exp_inf"]) if moved(state) else _root(squares, group)


def _rmsprop(state: dict[str, Any], group: Group, squares: Tensor) -> Tensor:
    if not moved(state):
        return _root((1 - float(group["alpha"])) * squares, group)
    v = real(state["square_avg"])
    if "grad_avg" in state:
        v = (v - real(state["grad_avg"]).square()).clamp(min=0)
    return _root(v, group)


def _adagrad(state: dict[str, Any], group: Group, squares: Tensor) -> Tensor:
    return _root(real(state["sum"]) if moved(state) else squares, group)


# The divisor of the gradient, from the state of a parameter; before the first step from the squares of a few gradients.
DIVISORS: dict[type[torch.optim.Optimizer], Callable[[dict[str, Any], Group, Tensor], Tensor]] = {
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.NAdam: _adam,
    torch.optim.Adamax: _adamax,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adagrad: _adagrad,
}
PLAIN = (torch.optim.SGD, torch.optim.ASGD)


def divisor(base: torch.optim.Optimizer) -> Callable[[dict[str, Any], Group, Tensor], Tensor] | None:
    """How the base scales gradients; None for one that does not, or in no known way (RAdam begins without)."""
    return next((f for kind, f in DIVISORS.items() if isinstance(base, kind)), None)


def rate_is_known(base: torch.optim.Optimizer) -> bool:
    """Whether w moves by −lr times a known scaling of the gradient, so that a measured step can take the place of lr."""
    return isinstance(base, PLAIN) or divisor(base) is not None


def root_of_scaling(base: torch.optim.Optimizer, squares: Tensor) -> Tensor | None:
    """R = D^{½} with D the base's own scaling of gradients, flat; None where it has none.

    `squares` is flat as well: the mean of squared gradients, for parameters that the base has not moved yet.
    """
    rule = divisor(base)
    if rule is None:
        return None
    parts: list[Tensor] = []
    seen: list[Tensor] = []
    start = 0
    for group in base.param_groups:
        for p in group["params"]:
            n = real(p.detach()).numel()
            part = rule(base.state.get(p, {}), group, squares[start : start + n].view_as(real(p.detach())))
            parts.append(part.reshape(-1).to(squares))
            seen.append(parts[-1] > 2 * float(group.get("eps", 0.0)))
            start += n
    D, alive = torch.cat(parts), torch.cat(seen)
    # A gradient that has always been zero has no scale: it takes the smallest scaling of the others.
    floor = D[alive].max() if bool(alive.any()) else D.new_ones(())
    return torch.where(alive, D, floor).rsqrt()


def decay(base: torch.optim.Optimizer, root: Tensor | None) -> float:
    """What weight decay adds to the curvature that a step meets: it acts outside of P, and inside of Adam's scaling."""
    found = 0.0
    for group in base.param_groups:
        coupled = root is not None and not group.get("decoupled_weight_decay", isinstance(base, torch.optim.AdamW))
        scale = float(root.square().max()) if coupled and root is not None else 1.0
        found = max(found, scale * float(group.get("weight_decay") or 0.0))
    return found
