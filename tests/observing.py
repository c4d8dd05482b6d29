"""Training loops that call observe with each batch."""

from __future__ import annotations

import torch

from util import F64


def least_squares(n=4000, d=30, noise=0.1, seed=0, power=1.5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=F64) * torch.logspace(power, -power, d, dtype=F64)
    y = x @ torch.randn(d, generator=g, dtype=F64) + noise * torch.randn(n, generator=g, dtype=F64)
    return x, y


def train_on(model_loss, opt, data, size, steps, seed=0):
    x, y = data
    g = torch.Generator().manual_seed(seed)
    reports = []
    for _ in range(steps):
        part = torch.randint(len(x), (size,), generator=g)
        batch = x[part], y[part]
        opt.zero_grad()
        model_loss(batch).backward()
        reports.append(opt.observe(model_loss, batch))
        opt.step()
    return [r for r in reports if r is not None]


def drive(opt, loss, batches):
    reports = []
    for batch in batches:
        opt.zero_grad()
        loss(batch).backward()
        reports.append(opt.observe(loss, batch))
        opt.step()
    return [r for r in reports if r is not None]


def curved(w):
    return lambda b: 0.5 * (b * w).square().sum() + b.sin() @ w


MAKE = {"sgd": lambda p: torch.optim.SGD(p, lr=100.0), "Adam": lambda p: torch.optim.Adam(p, lr=100.0)}
