"""CDAT (Roulet et al. 2024), from its paper: the step at the edge of stability along Adam's direction, one product per step."""

from __future__ import annotations

import torch
from torch import nn

from infhess.curvature import Hessian
from infhess.harness.training import Problem
from infhess.problems.shuffled import CountedStream

# η = σ ⟨gᵀu⟩ / ⟨|uᵀHu|⟩, with moving averages.
SIGMA, SMOOTHING, BETAS, EPS = 2.0, 0.9, (0.9, 0.999), 1e-8


class Cdat:
    """w −= η u with u = m̂/√v̂ of Adam, and η = 2 gᵀu/uᵀHu, both sides averaged over time."""

    def __init__(self, problem: Problem, stream: CountedStream) -> None:
        self.model, self.stream, self.products = problem.model(), stream, 0
        self.models: dict[str, nn.Module] = {"": self.model}
        self.loss, self.params = problem.loss(self.model), list(self.model.parameters())
        n = sum(p.numel() for p in self.params)
        self.m, self.v, self.steps = torch.zeros(n), torch.zeros(n), 0
        self.above, self.below = 0.0, 0.0

    def step(self) -> None:
        """Gradient and product of one batch."""
        batch = next(self.stream)
        source = Hessian(self.loss, self.params, [batch])
        local = source.local(batch)
        g = local.gradient()
        self.steps += 1
        self.m = BETAS[0] * self.m + (1 - BETAS[0]) * g
        self.v = BETAS[1] * self.v + (1 - BETAS[1]) * g.square()
        u = self.m / (1 - BETAS[0] ** self.steps) / ((self.v / (1 - BETAS[1] ** self.steps)).sqrt() + EPS)
        along, curved = float(g @ u), float(u @ source.product(local, u))
        self.products += 1
        self.above = SMOOTHING * self.above + (1 - SMOOTHING) * max(along, 0.0)
        self.below = SMOOTHING * self.below + (1 - SMOOTHING) * abs(curved)
        rate = SIGMA * self.above / self.below if self.below > 0 else 0.0
        for p, part in zip(self.params, source.flat.unpack(u)):
            p.data.add_(part, alpha=-rate)
