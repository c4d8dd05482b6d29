"""Priors, products of a small matrix, and a posterior against its dense definition."""

from __future__ import annotations

import numpy as np
import torch

import dense
from infhess import Isotropic, Kronecker, Symmetric
from util import close, randn, spd

N, m = 6, 4
B0, W0, L0 = 1.5, 0.7, 0.3
SCALAR = {"isotropic": (Isotropic, dense.isotropic), "symmetric": (Symmetric, dense.symmetric)}


def data(n=N, cols=m, rows=None, seed=0, noise=0.1, symmetric=True):
    rows = n if rows is None else rows
    S = randn(n, cols, seed=seed)
    B = spd(n, seed + 1) if rows == n and symmetric else randn(rows, n, seed=seed + 1)
    return B, S, B @ S + noise * randn(rows, cols, seed=seed + 2)


def agrees(posterior, reference, rtol=1e-8):
    """Mean, variance of random and unit forms, evidence and solve, against the dense definition."""
    rows, cols = posterior.shape
    close(posterior.mean.dense(), reference.mean, rtol)
    for seed in range(3):
        u, v = randn(rows, seed=seed), randn(cols, seed=seed + 10)
        expected = reference.variance(u.numpy(), v.numpy())
        prior = float(u @ u) * float(v @ v)
        close(posterior.variance(u, v), torch.tensor(expected), atol=rtol * prior)
    close(posterior.log_evidence(), torch.tensor(reference.log_evidence()), rtol)
    if rows == cols:
        v = randn(rows)
        close(posterior.mean.solve(v), np.linalg.solve(reference.mean, v.numpy()), 1e-8)


EXACT = {
    "isotropic": Isotropic(B0, W0),
    "symmetric": Symmetric(B0, W0),
    "kronecker": Kronecker(B0, spd(N, 3), spd(N, 4)),
    "diagonal": Kronecker(B0, randn(N, seed=3).abs() + 0.1, 1.0),
}
NOISY = {
    "isotropic": Isotropic(B0, W0, L0),
    "symmetric": Symmetric(B0, W0, L0),
    "kronecker": Kronecker(B0, spd(N, 3), spd(N, 4), spd(N, 5), 0.3),
}
