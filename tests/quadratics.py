"""Quadratic losses with a prescribed Hessian, whole and by layers, and their batches."""

from __future__ import annotations

import torch
from torch import nn

from util import F64, randn, spectrum

N = 12


def quadratic(B, b, seed=0, noise=0.0):
    """w, a loss ½wᵀBw − bᵀw whose batches carry a linear term of mean zero, and endless batches of eight points."""
    w = nn.Parameter(randn(len(B), seed=seed, dtype=B.dtype))

    def loss(batch):
        return 0.5 * w @ B @ w - b @ w + noise * (batch @ w).mean()

    def batches():
        g = torch.Generator().manual_seed(seed)
        while True:
            yield torch.randn(8, len(B), generator=g, dtype=F64).to(B.dtype)

    return w, loss, batches


def stepped(opt, loss, batch):
    opt.zero_grad()
    loss(batch).backward()
    opt.step()


B = spectrum(torch.logspace(3, -1, N, dtype=F64))
b = randn(N, seed=5)


def two_layers(seed=0):
    """A loss that is a sum over layers, so that the Hessian is block-diagonal."""
    blocks = [spectrum([50.0, 20.0, 5.0, 1.0, 0.5, 0.1], seed=1), spectrum([30.0, 8.0, 2.0, 0.3], seed=2)]
    ps = [nn.Parameter(randn(6, seed=3).reshape(3, 2)), nn.Parameter(randn(4, seed=4).reshape(2, 2))]

    def loss(batch):
        return (
            sum(0.5 * p.reshape(-1) @ A @ p.reshape(-1) for p, A in zip(ps, blocks))
            + (batch @ torch.ones(1, dtype=F64)).mean() * ps[0].sum()
        )

    def batches():
        g = torch.Generator().manual_seed(seed)
        while True:
            yield 0.01 * torch.randn(4, 1, generator=g, dtype=F64)

    return ps, blocks, loss, batches
