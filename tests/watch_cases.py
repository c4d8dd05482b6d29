"""Nets, and one training loop for each way in which an optimizer gets to see curvature."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import infhess

F64 = torch.float64
WAYS = ("observe", "watch", "closure")


class Attention(nn.Module):
    """A small causal transformer with PyTorch's own attention."""

    def __init__(self, tokens=11, width=8):
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(16, width)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, tokens)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(x + self.out(seen)).transpose(1, 2)


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


NETS = {"mlp": (mlp, (6,)), "cnn": (cnn, (1, 8, 8)), "transformer": (Attention, None)}


def net(kind):
    torch.manual_seed(0)
    return NETS[kind][0]().to(F64)


def batch(kind, t, points=40):
    g = torch.Generator().manual_seed(t)
    shape = NETS[kind][1]
    if shape is None:
        ids = torch.randint(11, (points, 9), generator=g)
        return ids[:, :-1], ids[:, 1:]
    x = torch.randn(points, *shape, generator=g, dtype=F64)
    return x, x.flatten(1)[:, :3].argmax(1)


def train(opt, loss, batches, way, after_backward=lambda: None):
    """One step for each batch; the learning rates in use."""
    rates = []
    for b in batches:
        if way == "closure":

            def closure(b=b):
                opt.zero_grad()
                value = loss(b)
                value.backward()
                after_backward()
                return value

            opt.step(closure)
        else:
            opt.zero_grad()
            if way == "watch":
                with opt.watch():
                    loss(b).backward()
            else:
                loss(b).backward()
                opt.observe(loss, b)
            after_backward()
            opt.step()
        rates.append(float(opt.rate) if hasattr(opt, "rate") else opt._state.step)
    return torch.tensor(rates, dtype=F64)


def diagonal(params):
    """To rounding: the rotated scaling makes more of it, by itself and also where points of a batch change places."""
    return infhess.RateFree(params, scaling="diagonal")


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])
