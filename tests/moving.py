"""Logistic regression whose parameters move, with its exact Hessian in closed form."""

from __future__ import annotations

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from infhess import Hessian
from infhess.cli.shuffled import Shuffled
from util import F64, randn

SCALES = torch.linspace(2.0, 0.3, 20, dtype=F64)


class Moving:
    """n points of 20 features; `drift` moves the parameters a little, `jump` far."""

    def __init__(self, seed=0, n=2000, batch=32):
        self.x = randn(n, 20, seed=seed) * SCALES
        self.y = (self.x[:, 0] + randn(n, seed=seed + 1) > 0).double()
        self.w = (0.1 * randn(20, seed=seed + 2)).requires_grad_()
        self.g = torch.Generator().manual_seed(seed)
        self.batch = batch

    def loss(self, batch):
        return binary_cross_entropy_with_logits(batch[0] @ self.w, batch[1])

    def source(self):
        return Hessian(self.loss, [self.w], Shuffled((self.x, self.y), self.batch, self.g))

    def truth(self, k):
        p = torch.sigmoid(self.x @ self.w.detach())
        return torch.linalg.eigvalsh((self.x.mT * (p * (1 - p))) @ self.x / len(self.x)).flip(0)[:k]

    def drift(self, size=0.01):
        self.w.data += size * torch.randn(20, generator=self.g, dtype=F64)

    def jump(self, size=3.0):
        self.w.data.copy_(size * torch.randn(20, generator=self.g, dtype=F64))
