"""A step of RateFree as one graph of `torch.compile`. Steps that probe curvature are not compiled, nor a parameter's first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infhess.curvature.flat import real
from infhess.optim.graph_host import decide, host_of, host_op, norm
from infhess.optim.rate.live import Live
from infhess.optim.scalings.gradient_scaling import SQUARES, GradientScaling, Own


@host_op("shrink", "(int host, int group, Tensor rate, Tensor(a!)[] z, Tensor[] directions) -> ()", "z")
def shrink(host: int, group: int, rate: Tensor, z: list[Tensor], directions: list[Tensor]) -> None:
    """Shrink the weights of a group if that is due. The rate, which the host knows, puts this after the host's decision."""
    host_of(host)._shrink(group, z, directions)


@shrink.register_fake
def _(host: int, group: int, rate: Tensor, z: list[Tensor], directions: list[Tensor]) -> None:
    pass


@host_op("learn", "(int host, int group, Tensor(a!)[] state, Tensor[] grads) -> ()", "state")
def learn(host: int, group: int, state: list[Tensor], grads: list[Tensor]) -> None:
    """Let the scaling learn from the gradients of a group; `state` holds what it may change, parameter after parameter."""
    host_of(host)._learn(group, state, grads)


@learn.register_fake
def _(host: int, group: int, state: list[Tensor], grads: list[Tensor]) -> None:
    pass


def step(host: int, scaling: GradientScaling, parts: Sequence[Live], owns: Sequence[Sequence[Own]]) -> None:
    """One step of all groups; like `stepping.advance`, without reading any number."""
    gradient = norm([g for part in parts for g in part.grads])
    before = decide(host, "_before", len(parts), 4, gradient).unbind()
    moves = []
    for i, (part, own, numbers) in enumerate(zip(parts, owns, before)):
        grads, found = _directions(scaling, part, own, *numbers.unbind())
        if state := [t for o in own for t in scaling.learnt(o).values()]:
            learn(host, i, state, grads)
        moves.append(found)
    after = decide(host, "_after", len(parts), 2, norm([d for move in moves for d in move])).unbind()
    for i, (part, own, move, numbers) in enumerate(zip(parts, owns, moves, after)):
        rate, newest = numbers.unbind()
        if scaling.rule.shrinkage > 0 and part.group["weight_decay"] is None:
            shrink(host, i, rate, [o["z"] for o in own], move)
        _move(part, own, move, rate, newest)


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
