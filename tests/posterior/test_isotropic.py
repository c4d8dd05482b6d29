"""Isotropic: evidence and error bars under the model, half precision, NumPy, extremes of scale."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from infhess import Isotropic, condition
from infhess.lowrank import SingularError
from infhess.posterior import Observations
from posterior_cases import B0, L0, W0, N, data
from util import F64, close, randn


def test_half_precision_columns_are_kept_in_single():
    _, S, Y = data()
    posterior = condition(Isotropic(B0, W0, L0), S.bfloat16(), Y.bfloat16())
    assert posterior.mean.dtype == torch.float32


def test_numpy_in_and_scipy_out():
    _, S, Y = data()
    posterior = condition(Isotropic(B0, W0, L0), S.numpy(), Y.numpy())
    np.testing.assert_allclose(posterior.mean.to_scipy() @ S.numpy(), posterior.mean @ S, rtol=1e-12)
    assert float(posterior.variance(S.numpy()[:, 0], S.numpy()[:, 0])) > 0


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_directions_whose_squares_leave_float32(size):
    _, S, Y = data()
    expected = condition(Isotropic(B0, W0, L0), S, Y).mean.dense()
    posterior = condition(Isotropic(B0, W0, L0), (size * S).float(), (size * Y).float())
    close(posterior.mean.dense(), expected, 1e-4)


def test_evidence_prefers_the_truth():
    """The evidence of data drawn from a prior is largest, on average, near that prior's noise."""
    n, cols, truth = 40, 12, 0.3
    totals = dict.fromkeys((0.03, truth, 3.0), 0.0)
    for seed in range(10):
        S = randn(n, cols, seed=seed)
        B = randn(n, n, seed=seed + 50)
        Y = B @ S + truth * S.norm(dim=0) * randn(n, cols, seed=seed + 100)
        for noise in totals:
            totals[noise] += float(condition(Isotropic(0.0, 1.0, noise), S, Y).log_evidence())
    assert max(totals, key=totals.get) == truth


def test_error_bars_of_the_isotropic_model_hold_under_the_model():
    """B and the noise drawn from the prior: 95 % of uᵀBv lie within 1.96 standard deviations (2,000 trials, ± 2 %)."""
    n, cols = 12, 5
    hits = 0
    for seed in range(100):
        S, B = randn(n, cols, seed=seed), randn(n, n, seed=seed + 1000)
        Y = B @ S + 0.5 * S.norm(dim=0) * randn(n, cols, seed=seed + 2000)
        posterior = condition(Isotropic(0.0, 1.0, 0.5), S, Y)
        U, V = randn(n, 20, seed=seed + 3000), randn(n, 20, seed=seed + 4000)
        error = (U * (B @ V - posterior.mean @ V)).sum(0)
        hits += int((error.abs() < 1.96 * posterior.variance(U, V).sqrt()).sum())
    assert 0.93 < hits / 2000 < 0.97


@pytest.mark.parametrize("noise", [1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_small_noise_gives_small_error_bars_not_rounding(dtype, noise):
    S = torch.linalg.qr(randn(200, 5)).Q.to(dtype)
    posterior = condition(Isotropic(0.0, 1.0, noise), S, S)
    u = S[:, 0]
    if dtype == F64 or noise > 1e-6:
        close(posterior.variance(u, u).sqrt(), noise, 0.05)
    assert float(posterior.variance(u, u).sqrt()) < 2e-6 + 2 * noise


def test_numpy_views_and_read_only_arrays():
    S, Y = randn(6, 3).numpy(), randn(6, 3, seed=1).numpy()
    read_only = Y[:, ::-1]
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = condition(Isotropic(1.0, 1.0, 0.1), S[:, ::-1], read_only)
        close(posterior.mean.dense(), condition(Isotropic(1.0, 1.0, 0.1), S, Y).mean.dense(), 1e-12)
        v = np.arange(6.0)[::-1]
        close(posterior.mean @ v, posterior.mean.to_scipy() @ v, 1e-12)


@pytest.mark.parametrize("mean", [0.5, 1.0, -2.0])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_newton_is_the_inverse_of_the_mean(mean, noise):
    B, S, _ = data()
    posterior, g = condition(Isotropic(mean, 0.7, noise), S, B @ S), randn(N, seed=5)
    close(posterior.newton(g), torch.linalg.solve(posterior.mean.dense(), g), 1e-9)
    empty = Isotropic(mean, 0.7, noise).given(Observations.empty(N, N, S))
    close(empty.newton(g), g / mean, 1e-12)


def test_newton_of_a_mean_of_zero_is_an_error():
    B, S, _ = data()
    with pytest.raises(SingularError):
        condition(Isotropic(0.0, 0.7, 0.3), S, B @ S).newton(randn(N))
