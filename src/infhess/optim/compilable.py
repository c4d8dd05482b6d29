"""Steps of RateFree: one tensor operation after the other, or as one graph of `torch.compile`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from infhess.optim import compiled, sharded
from infhess.optim.averaging.averaged import AveragingOptimizer
from infhess.optim.rate.live import Live, live
from infhess.optim.scalings.diagonal import TINY, counted
from infhess.optim.shrinking import shrink
from infhess.optim.stepping import advance, rates_of, weigh_noise


class CompilableOptimizer(AveragingOptimizer):
    """Makes the steps. In a graph, it decides as the host, between the operations on tensors."""

    def _begin(self) -> None:
        super()._begin()
        self._steady = None
        self._skips = False  # whether the step in a graph moves nothing
        self._rates: list[float] = []  # of each group, for the step in a graph

    def _prepare(self, parts: Sequence[Live], gradient: float) -> bool:
        """Probe curvature if that is due; return whether a step can be made with a gradient of this length."""
        raise NotImplementedError

    def _step(self) -> None:
        if not torch.compiler.is_compiling():
            parts = self._parts()
            gradient = sharded.length_of([(part.grads, part.params) for part in parts]) if parts else 0.0
            if parts and self._prepare(parts, gradient):
                known = [self._owns(part.params) for part in parts]
                advance(parts, known, self._scaler, self._rate_state, self._size)
        elif not self._prober.waits and self._steady == self._with_gradient():
            parts = self._parts()
            compiled.step(self._number, self._scaling, parts, [[self.state[p] for p in part.params] for part in parts])
        else:
            self._uncompiled_step()

    def _parts(self) -> list[Live]:
        return [part for part in map(live, self.param_groups) if part.params]

    def _repeatable_step(self) -> bool:
        self._step()
        owns = [[self.state[p] for p in part.params] for part in self._parts()]
        equal = all(len({(float(o["step"]), float(o["begun"])) for o in own}) == 1 for own in owns)
        one_device = len({o["z"].device for own in owns for o in own}) == 1
        moved = all(float(o["step"]) > 0 for own in owns for o in own) and not math.isnan(self._rate_state.rate)
        return equal and one_device and moved and not self._sharded

    # ---- the host of a graph

    def _before(self, gradient: float) -> list[list[float]]:
        """For each group: factor on v, weight of g², √(1 − β₂ⁿ), and ε. They keep v in a step that is skipped."""
        parts = self._parts()
        self._skips = not self._prepare(parts, gradient)
        if self._skips:
            return [[1.0, 0.0, 1.0, 1.0] for _ in parts]
        state, known = self._rate_state, [self._owns(part.params) for part in parts]
        weigh_noise(parts, [owns for owns, _ in known], state)
        numbers = []
        for part, (owns, ages) in zip(parts, known):
            counted(owns)
            beta, n = part.group["betas"][1], ages[0] + 2 - self._scaling.first
            eps = max(state.epsilon(part.group["eps"]), TINY)
            numbers.append([beta, 1 - beta, math.sqrt(1 - beta**n), eps])
        return numbers

    def _learn(self, group: int, state: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Let the scaling learn from the gradients of a group, and write to these tensors of its state."""
        values, scaling = iter(state), self._scaling
        for p, g in zip(self._parts()[group].params, grads):
            own = self.state[p]
            names = scaling.learnt(own)
            if names and not self._skips:
                scaling.learn({name: next(values) for name in names}, int(own["step"]), g)

    def _after(self, length: float) -> list[list[float]]:
        """For each group: the learning rate, and the weight of the newest iterate in the average. Zeros skip the step."""
        parts, state = self._parts(), self._rate_state
        if self._skips:
            return [[0.0, 0.0] for _ in parts]
        self._rates = rates_of(parts, length, state, self._size)
        begun = [float(self.state[part.params[0]]["begun"]) for part in parts]
        return [[rate, state.newest(before)] for rate, before in zip(self._rates, begun)]

    def _shrink(self, group: int, z: Sequence[Tensor], directions: Sequence[Tensor]) -> None:
        """Shrink z of a group if that is due."""
        state = self._rate_state
        if state.shrinks and not self._skips:
            shrink(self._parts()[group], [{"z": value} for value in z], directions, self._rates[group], state.rule)
