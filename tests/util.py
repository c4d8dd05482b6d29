"""Matrices with a prescribed spectrum, and tolerances by dtype."""

from __future__ import annotations

import pytest
import torch

F64 = torch.float64
RTOL = {torch.float64: 1e-8, torch.float32: 2e-4}


def randn(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def orthogonal(n, seed=0, dtype=F64):
    return torch.linalg.qr(randn(n, n, seed=seed)).Q.to(dtype)


def spectrum(values, seed=0, dtype=F64):
    """A symmetric matrix with these eigenvalues in a random basis."""
    values = torch.as_tensor(values, dtype=F64)
    Q = orthogonal(len(values), seed)
    return ((Q * values) @ Q.mT).to(dtype)


def spd(n, seed=0):
    A = randn(n, n, seed=seed)
    return A @ A.mT + 0.1 * torch.eye(n, dtype=F64)


def close(a, b, rtol=1e-8, atol=None):
    """max |a − b| relative to the largest entry of b."""
    a, b = torch.as_tensor(a, dtype=F64), torch.as_tensor(b, dtype=F64)
    scale = float(b.abs().max()) if b.numel() else 1.0
    error = float((a - b).abs().max()) if b.numel() else 0.0
    assert a.shape == b.shape, (a.shape, b.shape)
    assert error <= (rtol * scale if atol is None else atol), f"error {error:.3g}, scale {scale:.3g}"


def fast_and_long(name, few, many):
    """A test of a random thing, with few repetitions for `make test` and with many for `make test-long`."""
    return pytest.mark.parametrize(name, [few, pytest.param(many, marks=pytest.mark.long)])
