"""A curvature probe by a second run of the closure, for losses without second derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import real
from infhess.curvature.no_side_effects import repeated
from infhess.curvature.random_state import RandomState
from infhess.optim import sharded
from infhess.optim.rate.live import gradients
from infhess.optim.rate.probe import Reading, Scaled, dot

# Before there is a learning rate, w moves by this share of |w|.
SHARE = 1e-3


class DifferenceProbe:
    """h = (g(w) − g(w − δDg))/δ on the same batch, with the same random numbers.

    δ is the length of the coming step, at the first probe a thousandth of |w|: kinks of ReLU within that distance count, as
    they do for the step. Sums run over the local parts of parameters and over processes, so that sharded parameters count as
    whole ones.
    """

    norms: list[Any] | None = None

    def __init__(
        self,
        params: Sequence[Tensor],
        closure: Callable[[], object],
        random_state: RandomState,
        distance: float,
        points: int,
    ) -> None:
        self.params, self.cost = [p for p in params if p.requires_grad], (1, points)
        self._closure, self._random_state = closure, random_state
        self._distance = distance  # as a share of |Dg|; NaN: a thousandth of |w|

    def read(self, g: Sequence[Tensor], scaled: Scaled) -> Reading:
        """Probe along Dg, with g the gradient of the coming step and D its scaling."""
        p = [scaled(i, x) for i, x in enumerate(g)]
        along, gradient, direction = self._dot(g, p), math.sqrt(self._dot(g, g)), math.sqrt(self._dot(p, p))
        if not 0 < along < math.inf:
            return Reading.of(gradient, direction, along)
        distance = self._distance if self._distance > 0 else SHARE * (sharded.size_of(self.params) or 1.0) / direction
        there = self._gradient_at(p, distance)
        h = [(x - y) / distance for x, y in zip(g, there)]
        return Reading.of(gradient, direction, along, self._dot(h, [scaled(i, x) for i, x in enumerate(h)]))

    def _dot(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
        return sharded.total([dot(x, y) for x, y in zip(a, b)], self.params)

    def _gradient_at(self, p: Sequence[Tensor], distance: float) -> list[Tensor]:
        """The gradient at w − distance·p; weights and gradients are restored bit for bit."""
        here = [sharded.local(w.detach()) for w in self.params]
        before, grads = [w.clone() for w in here], [w.grad for w in self.params]
        try:
            for w, x in zip(here, p):
                real(w).sub_(x, alpha=distance)
            for w in self.params:
                w.grad = None
            with repeated(self._random_state, self.params):
                self._closure()
            return gradients(self.params)
        finally:
            with torch.no_grad():
                for w, kept in zip(here, before):
                    w.copy_(kept)
            for w, g in zip(self.params, grads):
                w.grad = g
