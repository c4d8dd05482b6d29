"""The arithmetic of a step of RateFree, for parameters that are whole or sharded over processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import real, widened
from infhess.optim import sharded
from infhess.optim.rate.live import Live
from infhess.optim.rate.rate_state import RateState
from infhess.optim.rate.settings import RateFreeRule
from infhess.optim.scalings.scaler import Scaler

# If steps are this many times shorter than their bound, |w| changes little over this many steps.
FAR, SIZE_HOLDS = 4.0, 16


class WeightSize:
    """|w|, measured every few steps, and whenever a step may come close to its bound, a share of |w|."""

    def __init__(self) -> None:
        self._last, self._age = 0.0, 0

    def at(self, parts: Sequence[Live], state: RateState, scale: float) -> float:
        """|w| for the coming step; `scale` multiplies its rate."""
        self._age += 1
        far = FAR * state.rate * scale * state.length <= state.rule.longest * self._last
        if not far or self._age >= SIZE_HOLDS:
            weights = [([sharded.local(real(p.detach())) for p in part.params], part.params) for part in parts]
            self._last, self._age = sharded.length_of(weights), 0
        return self._last


def advance(
    parts: Sequence[Live], scaler: Scaler, state: RateState, size: WeightSize, owns: Mapping[Tensor, dict[str, Any]]
) -> None:
    """Make one step: directions, the rate for a step of their length, and the move. `owns` are the states of all parameters."""
    if state.weighs_noise:
        state.weigh_noise(sum(map(lead, parts)))
    moves = [scaler.directions(part, float(part.group["eps"]) * state.gradient) for part in parts]
    scale = max(float(part.group["lr"]) for part in parts)
    length = sharded.length_of([(d, part.params) for part, d in zip(parts, moves)])
    rate = state.advance(length, size.at(parts, state, scale), scale)
    before = state.weight
    state.average(scale)
    if sum(len(part.params) for part in parts) < len(owns):
        # The others have no newest iterate: their averages began later, by the weight of this one.
        for p in owns.keys() - {p for part in parts for p in part.params}:
            owns[p]["begun"] += state.weight - before
    for part, d in zip(parts, moves):
        step = rate * float(part.group["lr"])
        if state.shrinks and part.group["weight_decay"] is None:
            shrink(part, d, step, state.rule)
        move(part, d, step, state.newest)


def lead(part: Live) -> float:
    """⟨g, z − x⟩ of one group."""
    z, x = ([sharded.local(own[name]) for own in part.owns] for name in ("z", "averaged"))
    leads = [float((g * d).sum()) for g, d in zip(part.grads, torch._foreach_sub(z, x))]
    return sharded.total(leads, part.params)


def shrink(part: Live, directions: Sequence[Tensor], rate: float, rule: RateFreeRule) -> None:
    """z −= ½ k κ (|step|/|W|)² W for each matrix W, where the step is `rate` times its direction.

    A step orthogonal to W lengthens it by ½ (|step|/|W|)² of |W|. If gradients are noise, this is diffusion: |W|² grows step by
    step without fitting the data. The share κ of this growth is removed, every k steps. The result depends on neither the
    units of the loss nor those of the weights. Vectors (biases, gains of normalisation) stay as they are.
    """
    matrices = [i for i, p in enumerate(part.params) if p.ndim > 1]
    params = [part.params[i] for i in matrices]
    if not params:
        return
    y, z = ([sharded.local(real(w.detach())) for w in params], [sharded.local(part.owns[i]["z"]) for i in matrices])
    sizes, steps = (sharded.lengths(tensors, params) for tensors in (y, [directions[i] for i in matrices]))
    share = rule.shrinkage * rule.noise_every / 2
    turns = [min(rate * step / size, rule.widest_turn) if size > 0 else 0.0 for step, size in zip(steps, sizes)]
    shares = [share * turn**2 if turn == turn else 0.0 for turn in turns]
    torch._foreach_sub_(z, torch._foreach_mul([widened(w) for w in y], shares))


def move(part: Live, d: list[Tensor], rate: float, newest: Callable[[float], float]) -> None:
    """z −= rate·(d + decay·y), x += c (z − x), y = (1 − β₁) z + β₁ x.

    c = `newest(begun)`, with `begun` the total weight of the average when the parameter's own average began.
    """
    group, owns = part.group, part.owns
    y, z, x = [real(p) for p in part.params], [own["z"] for own in owns], [own["averaged"] for own in owns]
    if sharded.is_sharded(*y):
        y, z, x = [[sharded.local(v.detach()) for v in values] for values in (y, z, x)]
    if group["weight_decay"]:
        torch._foreach_add_(z, [w.to(v.dtype) for w, v in zip(y, z)], alpha=-rate * group["weight_decay"])
    torch._foreach_add_(z, d, alpha=-rate)
    begun = [float(own["begun"]) for own in owns]
    if min(begun) == max(begun):
        torch._foreach_lerp_(x, z, newest(begun[0]))
    else:
        for mean, new, before in zip(x, z, begun):
            mean.lerp_(new, newest(before))
    weight = 1 - group["betas"][0]
    for w, mean, new in zip(y, x, z):
        if w.dtype == mean.dtype:
            torch.lerp(mean, new, weight, out=w)
        else:
            w.copy_(torch.lerp(mean, new, weight))
