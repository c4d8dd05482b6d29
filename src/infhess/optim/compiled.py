"""A step of RateFree as one graph of `torch.compile`.

The rule reads lengths as numbers and decides on the host. In a graph, each of its decisions is an operator that the compiler
does not look into, so that nothing breaks the graph: the tensors stay in it, the scalars outside. Steps that probe curvature,
and the first steps of a parameter, are not compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.curvature.flat import real, widened
from infhess.optim.rate.live import Live
from infhess.optim.scalings.gradient_scaling import SQUARES, GradientScaling, Own


class Host(Protocol):
    """Decides on a step. Graphs name it by a number."""

    def _before(self, gradient: float) -> list[list[float]]:
        """For each group, before directions are known: factor on v, weight of g², √(1 − β₂ⁿ), and ε."""

    def _learn(self, group: int, state: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Let the scaling learn from the gradients of a group, and write to these tensors of its state."""

    def _after(self, length: float) -> list[list[float]]:
        """For each group, given the length of all directions: the learning rate, and the weight of the newest iterate."""

    def _shrink(self, group: int, z: Sequence[Tensor], directions: Sequence[Tensor]) -> None:
        """Shrink z of a group if that is due."""


_hosts: WeakValueDictionary[int, Host] = WeakValueDictionary()
_numbers = count()


def registered(host: Host) -> int:
    """The number by which graphs find their host."""
    number = next(_numbers)
    _hosts[number] = host
    return number


@torch.library.custom_op("infhess::before_step", mutates_args=())
def before_step(host: int, groups: int, gradient: Tensor) -> Tensor:
    """Numbers of each group that its directions depend on; probes, warnings and skipped steps are the host's business."""
    return gradient.new_tensor(_hosts[host]._before(float(gradient)))


@before_step.register_fake
def _(host: int, groups: int, gradient: Tensor) -> Tensor:
    return gradient.new_empty(groups, 4)


@torch.library.custom_op("infhess::after_step", mutates_args=())
def after_step(host: int, groups: int, length: Tensor) -> Tensor:
    """Numbers of each group that its move depends on."""
    return length.new_tensor(_hosts[host]._after(float(length)))


@after_step.register_fake
def _(host: int, groups: int, length: Tensor) -> Tensor:
    return length.new_empty(groups, 2)


@torch.library.custom_op("infhess::shrink", mutates_args=("z",))
def shrink(host: int, group: int, rate: Tensor, z: list[Tensor], directions: list[Tensor]) -> None:
    """Shrink the weights of a group if that is due. The rate, which the host knows, puts this after the host's decision."""
    _hosts[host]._shrink(group, z, directions)


@shrink.register_fake
def _(host: int, group: int, rate: Tensor, z: list[Tensor], directions: list[Tensor]) -> None:
    pass


@torch.library.custom_op("infhess::learn", mutates_args=("state",))
def learn(host: int, group: int, state: list[Tensor], grads: list[Tensor]) -> None:
    """Let the scaling learn from the gradients of a group; `state` holds what it may change, parameter after parameter."""
    _hosts[host]._learn(group, state, grads)


@learn.register_fake
def _(host: int, group: int, state: list[Tensor], grads: list[Tensor]) -> None:
    pass


def step(host: int, scaling: GradientScaling, parts: Sequence[Live], owns: Sequence[Sequence[Own]]) -> None:
    """One step of all groups; like `stepping.advance`, without reading any number."""
    gradient = norm([g for part in parts for g in part.grads])
    before = before_step(host, len(parts), gradient).unbind()
    moves = []
    for i, (part, own, numbers) in enumerate(zip(parts, owns, before)):
        grads, found = _directions(scaling, part, own, *numbers.unbind())
        if state := [t for o in own for t in scaling.learnt(o).values()]:
            learn(host, i, state, grads)
        moves.append(found)
    after = after_step(host, len(parts), norm([d for move in moves for d in move])).unbind()
    for i, (part, own, move, numbers) in enumerate(zip(parts, owns, moves, after)):
        rate, newest = numbers.unbind()
        if scaling.rule.shrinkage > 0 and part.group["weight_decay"] is None:
            shrink(host, i, rate, [o["z"] for o in own], move)
        _move(part, own, move, rate, newest)


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all tensors as one vector, on the device."""
    norms = torch.stack(torch._foreach_norm([widened(t) for t in tensors]))
    found: Tensor = torch.linalg.vector_norm(norms.to(small_dtype(norms.device)))
    return found


def _directions(
    scaling: GradientScaling,
    part: Live,
    owns: Sequence[Own],
    decay: Tensor,
    weight: Tensor,
    correction: Tensor,
    eps: Tensor,
) -> tuple[list[Tensor], list[Tensor]]:
    """g and Dg. A step that is skipped has a weight of zero, and its gradients, which may not be finite, count as zeros."""
    grads = [torch.where(weight > 0, g, 0.0) for g in part.grads]
    turned, squares, n = scaling.forth(owns, grads), [own[SQUARES] for own in owns], len(owns)
    torch._foreach_mul_(squares, [decay] * n)
    torch._foreach_add_(squares, torch._foreach_mul(torch._foreach_mul(turned, turned), [weight] * n))
    divisors = torch._foreach_sqrt(squares)
    torch._foreach_div_(divisors, [correction] * n)
    torch._foreach_add_(divisors, [eps] * n)
    return grads, scaling.back(owns, list(torch._foreach_div(turned, divisors)))


def _move(part: Live, owns: Sequence[Own], d: list[Tensor], rate: Tensor, newest: Tensor) -> None:
    """z −= rate·(d + decay·y), x += newest·(z − x), y = (1 − β₁) z + β₁ x."""
    group, n = part.group, len(owns)
    y, z, x = [real(p) for p in part.params], [own["z"] for own in owns], [own["averaged"] for own in owns]
    if group["weight_decay"]:
        torch._foreach_sub_(z, torch._foreach_mul([w.to(z[0].dtype) for w in y], [rate * group["weight_decay"]] * n))
    torch._foreach_sub_(z, torch._foreach_mul(d, [rate] * n))
    torch._foreach_add_(x, torch._foreach_mul(torch._foreach_sub(z, x), [newest] * n))
    torch._foreach_copy_(y, torch._foreach_lerp(x, z, 1 - group["betas"][0]))
