"""Nets, data and losses of golden runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Batch = tuple[Tensor, Tensor]
POINTS = 24


def mlp() -> nn.Module:
    """A small net; (6,) ↦ (3,)."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def norms() -> nn.Module:
    """A net with batch norm."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def convolutions() -> nn.Module:
    """A convolutional net."""
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def wide() -> nn.Module:
    """A net whose matrices are rotated in blocks."""
    return nn.Sequential(nn.Linear(6, 70), nn.Tanh(), nn.Linear(70, 66), nn.Tanh(), nn.Linear(66, 3))


class Tokens(nn.Module):
    """Features as tokens: an embedding, a layer norm, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(10, 8), nn.LayerNorm(8)
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Of features to scores."""
        h = self.tokens((2 * x + 5).long().clamp(0, 9))
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        return self.head((h + F.scaled_dot_product_attention(q, k, v)).mean(1))


def linear() -> nn.Module:
    """Softmax regression, which is convex."""
    return nn.Linear(6, 3)


class Once(torch.autograd.Function):
    """tanh by a kernel that cannot be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Of x."""
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Its gradient, of which there is no gradient."""
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


class OnceNet(nn.Module):
    """A net whose loss has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Of features to scores."""
        return self.last(Once.apply(self.first(x)))


def batch(t: int, dtype: torch.dtype, points: int = POINTS) -> Batch:
    """Batch t of a stream of points with a noisy label."""
    g = torch.Generator().manual_seed(1000 + t)
    x = torch.randn(points, 6, generator=g, dtype=torch.float64)
    y = (x[:, :3] + 0.5 * torch.randn(points, 3, generator=g, dtype=torch.float64)).argmax(1)
    return x.to(dtype), y


def loss_of(model: nn.Module, penalty: float = 0.0) -> Callable[[Batch], Tensor]:
    """Mean cross-entropy, and half the squared length of the weights times the penalty."""

    def loss(data: Batch) -> Tensor:
        value = F.cross_entropy(model(data[0]), data[1])
        return value + penalty / 2 * sum(p.square().sum() for p in model.parameters()) if penalty else value

    return loss
