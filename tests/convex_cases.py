"""Small convex problems: linear models of random data, and their minimisers by Newton's method in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

F64 = torch.float64


def squares(f, y):
    return functional.mse_loss(f[:, 0], y)


def logistic(f, y):
    return functional.softplus(-y * f[:, 0]).mean()


def softmax(f, y):
    return functional.cross_entropy(f, y)


def poisson(f, y):
    return (torch.exp(f[:, 0]) - y * f[:, 0]).mean()


def huber(f, y):
    return functional.huber_loss(f[:, 0], y, delta=0.5)


def drawn(kind, outputs=1, n=300, d=12):
    """Inputs of unequal lengths, and targets for a loss of this name."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, d, generator=g, dtype=F64) * torch.logspace(0.5, -0.5, d, dtype=F64)
    f = x @ torch.randn(d, outputs, generator=g, dtype=F64)
    noise = torch.randn(n, outputs, generator=g, dtype=F64)
    y = {
        "squares": (f + 0.1 * noise)[:, 0],
        "logistic": torch.sign(f + noise)[:, 0],
        "softmax": (f + noise).argmax(1),
        "poisson": torch.exp(f + 0.1 * noise)[:, 0].clamp(max=9).round(),
        "huber": (f + noise)[:, 0],
    }[kind]
    return x, y


@dataclass(frozen=True)
class Convex:
    """The mean of a loss of f(x) = Wx over data, plus ½ l2 |W|²; models start at zero."""

    data: tuple
    of: object
    l2: float
    outputs: int

    def model(self):
        model = nn.Linear(self.data[0].shape[1], self.outputs, bias=False, dtype=F64)
        nn.init.zeros_(model.weight)
        return model

    def objective(self, W, batch):
        return self.of(batch[0] @ W.mT, batch[1]) + self.l2 / 2 * W.square().sum()

    def loss(self, model):
        return lambda batch: self.objective(model.weight, batch)

    def value(self, model):
        return self.objective(model.weight.detach(), self.data).item()

    def hessian(self, W):
        return torch.func.hessian(lambda V: self.objective(V, self.data))(W.detach()).reshape(W.numel(), W.numel())

    def solved(self):
        model = self.model()
        W = model.weight
        for _ in range(50):
            before, start = W.detach().clone(), self.value(model)
            (g,) = torch.autograd.grad(self.loss(model)(self.data), [W])
            step = torch.linalg.solve(self.hessian(W), g.reshape(-1)).view_as(W)
            for halvings in range(20):
                W.data.copy_(before - step / 2**halvings)
                if self.value(model) <= start:
                    break
            if (g * step).sum() < 1e-14 * start:
                break
        return model


def small(of=squares, outputs=1, n=300, d=12, l2=0.0):
    return Convex(drawn(of.__name__, outputs, n, d), of, l2, outputs)
