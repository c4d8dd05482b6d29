"""What `update` does: an estimate of curvature by the chosen method, and the step of the chosen kind for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from infhess.curvature.batch_source import Hessian
from infhess.optim.base_optimizers import adaptive, decay, moved, rate_is_known, sqrt_scaling
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.controllers.measured import FRESH, Step, measured_step
from infhess.preconditioners import build
from infhess.preconditioners.build import Built
from infhess.preconditioners.scaling import Scaling


@dataclass(frozen=True)
class Update:
    """The settings of an estimate."""

    base: torch.optim.Optimizer
    state: ControllerState
    sizes: list[int]  # of the blocks
    rank: int
    blocks: str
    method: str
    step_length: str
    steps: int | None

    def estimate(self, source: Hessian) -> Built:
        """P² by the chosen method."""
        if self.method == "paper":
            if self.blocks == "layer":
                return build.paper_layers(source, self.sizes, self.rank, self.steps or max(5, self.rank))
            return build.paper(source, self.rank, self.steps or max(16, self.rank))
        root, steps = self._root(source), self.steps or self.rank
        if self.blocks == "layer":
            return build.layered(source, self.sizes, self.rank, steps, root)
        pool = build.read_pool(source, build.POINTS_A_DIRECTION * steps)
        return build.pooled(source, pool, self.rank, steps, root)

    def _root(self, source: Hessian) -> Tensor | None:
        """The root of the base's own scaling; before its first step, from the squares of a few gradients."""
        if not adaptive(self.base):
            return None
        if all(moved(self.base.state.get(p, {})) for p in source.flat.params):
            return sqrt_scaling(self.base, source.like)
        squares = source.like.new_zeros(source.size)
        for _ in range(FRESH):
            squares += source.gradient().square() / FRESH
        return sqrt_scaling(self.base, source.like, squares)

    def step(self, source: Hessian, found: Built) -> Step:
        """The step of the chosen kind, and P² with the factor that goes with it."""
        scaling = found.scaling
        if self.step_length == "keep":
            plain = self.method == "paper" or adaptive(self.base)  # Adam's own rate is for gradients of its own scale
            return Step(replace(scaling, factor=1.0) if plain else scaling, math.nan)
        if self.step_length == "paper":
            return self._paper_step(scaling, found)
        if not rate_is_known(self.base):
            kept = f"{type(self.base).__name__} keeps its rate, which does not multiply a known scaling of gradients"
            return Step(replace(scaling, factor=1.0), math.nan, math.inf, (kept,))
        w = source.flat.pack([p.detach() for p in source.flat.live])
        return measured_step(source, scaling, self.state, w, decay(self.base, scaling.root))

    def _paper_step(self, scaling: Scaling, found: Built) -> Step:
        """α² times the base's rate, α² = Σ₁/Σ_k; or 1/b0 for the paper's layers."""
        if not math.isnan(found.step):
            return Step(scaling, found.step)
        alpha2 = scaling.factor if self.method == "paper" else float(found.values[0]) * scaling.factor
        if adaptive(self.base):
            return Step(replace(scaling, factor=1.0), alpha2 * self.state.base_rate)
        return Step(replace(scaling, factor=alpha2), math.nan)
