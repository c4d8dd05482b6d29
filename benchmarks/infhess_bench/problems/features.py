"""Data sets as features for the problems, standardised."""

from __future__ import annotations

import torch
from torch import Tensor

from infhess_bench.data import cifar10, mnist, sarcos
from infhess_bench.problems.shuffled import Data


def polynomial(x: Tensor) -> Tensor:
    """[x, xᵢxⱼ for i ≤ j]."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1])
    return torch.cat([x, x[:, i] * x[:, j]], 1)


def standardised(x: Tensor) -> Tensor:
    """Columns of mean 0 and variance 1."""
    return (x - x.mean(0)) / x.std(0, correction=0)


def constant(x: Tensor) -> Tensor:
    """A column of ones, with as many rows as x."""
    return torch.ones(len(x), 1, dtype=x.dtype)


def apart(x: Tensor, y: Tensor, every: int) -> tuple[Data, Data]:
    """Training data, and test data: every n-th row."""
    test = torch.arange(len(x)) % every == 0
    return (x[~test], y[~test]), (x[test], y[test])


def sarcos_polynomial() -> Data:
    """1 and 252 standardised polynomial features of SARCOS, and torque 1, standardised."""
    x, torques = sarcos()
    features = standardised(polynomial(standardised(x)))
    return torch.cat([constant(x), features], 1), standardised(torques[:, :1])[:, 0]


def three_or_five(part: str = "train") -> Data:
    """MNIST's images of 3 and 5, 784 pixels in [0, 1]; and whether each is a 3."""
    images, labels = mnist(part)
    keep = (labels == 3) | (labels == 5)
    return images[keep].reshape(-1, 784).double() / 255, labels[keep] == 3


def signs(y: Tensor) -> Tensor:
    """Booleans as ±1."""
    return torch.where(y, 1.0, -1.0).double()


def cifar_images(train: int, test: int) -> tuple[Data, Data]:
    """The first images of CIFAR-10, standardised by the training channels; only the files needed are read."""
    (x, y), (tx, ty) = cifar10([f"data_batch_{i}" for i in range(1, 1 + -(-train // 10_000))]), cifar10(["test_batch"])
    x, tx = x[:train].float() / 255, tx[:test].float() / 255
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    return ((x - mean) / std, y[:train]), ((tx - mean) / std, ty[:test])
