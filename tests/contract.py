"""The contract of a torch optimizer: each base of torch, a small net, its batches, and Preconditioned after an update."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import infhess

BASES = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=0.05, **k),
    "momentum": lambda p, **k: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01, **k),
    "nesterov": lambda p, **k: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, **k),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=0.01, **k),
    "amsgrad": lambda p, **k: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=0.01, **k),
    "nadam": lambda p, **k: torch.optim.NAdam(p, lr=0.01, **k),
    "radam": lambda p, **k: torch.optim.RAdam(p, lr=0.01, **k),
    "adamax": lambda p, **k: torch.optim.Adamax(p, lr=0.01, **k),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, **k),
    "adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=0.05, **k),
    "asgd": lambda p, **k: torch.optim.ASGD(p, lr=0.05, **k),
    "adadelta": lambda p, **k: torch.optim.Adadelta(p, lr=1.0, **k),
    "rprop": lambda p, **k: torch.optim.Rprop(p, lr=0.01, **k),
    "adafactor": lambda p, **k: torch.optim.Adafactor(p, lr=0.01, **k),
}
MEASURED = [name for name in BASES if name not in ("radam", "adadelta", "rprop", "adafactor")]
each_base = pytest.mark.parametrize("base", BASES)


def net():
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def batches(seed=0):
    g = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(8, 3, generator=g)
        yield x, x[:, :2].sin()


def loss_of(model):
    return lambda batch: (model(batch[0]) - batch[1]).square().mean()


def value_of(model):
    with torch.no_grad():
        return float(loss_of(model)(next(batches(7))))


def steps(model, opt, n=5, seed=1):
    stream, loss = batches(seed), loss_of(model)
    for _ in range(n):
        opt.zero_grad()
        loss(next(stream)).backward()
        opt.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def flat(model):
    return torch.cat([w.reshape(-1) for w in weights(model)])


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def active(base="sgd", model=None, rank=3, **options):
    model = model or net()
    opt = infhess.Preconditioned(BASES[base](model.parameters()), rank=rank, **options)
    steps(model, opt, 2)
    opt.update(loss_of(model), batches())
    return model, opt


def through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)
