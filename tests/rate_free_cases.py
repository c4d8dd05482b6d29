"""What tests of RateFree share: a small net, its data, and a training loop."""

import torch
from torch import nn

F64 = torch.float64


def small_net(seed=0, dtype=F64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def data(n=64, seed=1, dtype=F64):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g, dtype=dtype)
    return x, torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], 1)


def loss_of(model, scale=1.0):
    return lambda batch: scale * (model(batch[0]) - batch[1]).square().mean()


def train(model, opt, steps, batch_size=16, loss=None, seed=2, stream=None, reports=None):
    loss = loss or loss_of(model)
    g = stream or torch.Generator().manual_seed(seed)
    x, y = data(dtype=next(model.parameters()).dtype)
    for _ in range(steps):
        part = torch.randint(len(x), (batch_size,), generator=g)
        opt.zero_grad()
        loss((x[part], y[part])).backward()
        report = opt.observe(loss, (x[part], y[part]))
        if report and reports is not None:
            reports.append(report)
        opt.step()
    return model


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).double()
