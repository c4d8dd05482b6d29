"""Features of inputs."""

from __future__ import annotations

import torch
from torch import Tensor


def polynomial(x: Tensor) -> Tensor:
    """[x, xᵢxⱼ for i ≤ j]."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1])
    return torch.cat([x, x[:, i] * x[:, j]], 1)


def standardised(x: Tensor) -> Tensor:
    """Columns of mean 0 and variance 1."""
    return (x - x.mean(0)) / x.std(0, correction=0)
