"""The paper's other baselines on its regression problem: averaged batch inverses, and conjugate gradients on noisy products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from infhess.harness.methods import fixed
from infhess.harness.training import Run


class AverageInverse(Run):
    """The mean of the least-squares estimates w̃ = B̃⁻¹Φy/|B| of the batches ("avg-inv")."""

    model: nn.Linear
    batches = 0

    def step(self) -> None:
        """One batch: its own solution, the shortest one where there are many."""
        x, y = next(self.stream)
        w = torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution[:, 0]
        self.batches += 1
        self.model.weight.data += (w - self.model.weight.data) / self.batches


class NoisyConjugateGradients(Run):
    """The method of conjugate gradients as it is, each product with a fresh batch."""

    model: nn.Linear
    r: Tensor | None = None
    p = torch.zeros(0)

    def step(self) -> None:
        """The first batch gives the gradient, each further one a product."""
        x, y = next(self.stream)
        if self.r is None:
            self.r = x.mT @ y / len(x)
            self.p = self.r.clone()
            return
        r, p = self.r, self.p
        Bp = x.mT @ (x @ p) / len(x)
        self.products += 1
        step = r @ r / (p @ Bp)
        self.model.weight.data += step * p
        self.r = r - step * Bp
        self.p = self.r + (self.r @ self.r) / (r @ r) * p


average_inverse, conjugate_gradients = fixed(AverageInverse), fixed(NoisyConjugateGradients)
