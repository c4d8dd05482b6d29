"""Least squares on few points, loaders of it, and products of fresh Gaussian rows."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from infhess import Products
from util import F64, randn


def problem(n, seed=0, d=8):
    """Least squares on n points: loss, parameters, data, and the exact top three eigenvalues."""
    X, y = randn(n, d, seed=seed) * torch.linspace(3, 0.3, d, dtype=F64), randn(n, seed=seed + 1)
    w = torch.zeros(d, dtype=F64, requires_grad=True)
    return (lambda b: ((b[0] @ w - b[1]) ** 2).mean()), w, (X, y), torch.linalg.eigvalsh(2 * X.mT @ X / n).flip(0)[:3]


def loader(data, size, seed=0, **options):
    return DataLoader(
        TensorDataset(*data), size, shuffle=True, generator=torch.Generator().manual_seed(seed), **options
    )


def replaced(data, size, seed=0):
    dataset = TensorDataset(*data)
    sampler = RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(seed))
    return DataLoader(dataset, size, sampler=sampler)


VALUES = torch.cat([torch.tensor([30.0, 18.0, 11.0, 7.0, 4.0]), torch.linspace(1, 0.1, 55)]).double()


def gaussian_source(batch=16, seed=0, values=VALUES, heavy=None):
    """Products with XᵀX/batch for fresh Gaussian rows of covariance diag(values), and the exact matrix."""
    g = torch.Generator().manual_seed(seed)

    def product(s):
        X = torch.randn(batch, len(values), generator=g, dtype=F64) * values.sqrt()
        return X.mT @ (X @ s) / batch

    return Products(product, None, len(values)), g
