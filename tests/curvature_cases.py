"""Losses of scikit-learn's digits whose exact Hessian over all the data is small enough to be formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from infhess.cli.shuffled import Shuffled
from infhess.curvature import Hessian
from infhess.example import digits

HIDDEN, CLASSES = 24, 10


@dataclass(frozen=True)
class Case:
    """model(w, x) and loss(outputs, y) at the parameters w."""

    w: Tensor
    x: Tensor
    y: Tensor
    model: Any
    loss: Any

    def source(self, batch, generator, dtype=torch.float64):
        w = self.w.to(dtype).requires_grad_()
        data = self.x.to(dtype), self.y.to(dtype) if self.y.is_floating_point() else self.y
        return Hessian(lambda b: self.loss(self.model(w, b[0]), b[1]), [w], Shuffled(data, batch, generator))

    def dense(self):
        return torch.func.hessian(lambda w: self.loss(self.model(w, self.x), self.y))(self.w)


def digits_logistic():
    """Those below 5 against the others: 65 weights, at zero."""
    images, labels = digits()
    x = torch.cat([images.new_ones(len(images), 1), images.reshape(-1, 64) / 16], 1)
    return Case(x.new_zeros(65), x, (labels < 5).double(), lambda w, x: x @ w, nn.BCEWithLogitsLoss())


def digits_mlp():
    """At 4×4 pixels: a net of 658 weights in one flat vector, with Xavier's initialisation."""
    images, labels = digits()
    x = nn.functional.avg_pool2d(images[:, None] / 16, 2).reshape(len(images), -1)
    g, parts = torch.Generator().manual_seed(0), []
    for ins, outs in ((16, HIDDEN), (HIDDEN, CLASSES)):
        weights = torch.randn(ins, outs, generator=g, dtype=x.dtype) * (2 / (ins + outs)) ** 0.5
        parts += [weights.reshape(-1), x.new_zeros(outs)]

    def model(w, x):
        a, b, c, d = torch.split(w, [len(part) for part in parts])
        return torch.tanh(x @ a.view(16, HIDDEN) + b) @ c.view(HIDDEN, CLASSES) + d

    return Case(torch.cat(parts), x, labels, model, nn.CrossEntropyLoss())
