"""Quantiles and intervals: against SciPy, at their limits, and on skewed samples."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from infhess.spectra.student import hall, log_interval, skewed_mean, two_sided
from util import F64, close


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_student_quantiles_against_scipy(level):
    dof = torch.tensor([1.0, 2.0, 2.7, 7.0, 31.0, 200.0, 1e5], dtype=F64)
    close(two_sided(level, dof), scipy.stats.t.ppf((1 + level) / 2, dof.numpy()), 1e-4)


def test_interval_functions_at_their_limits():
    x = torch.tensor([1.7, -0.4], dtype=F64)
    close(hall(x, torch.zeros(2, dtype=F64)), x, 1e-12)
    close(hall(x, torch.full((2,), 1e-5, dtype=F64)), x, 1e-4)
    low, high = log_interval(
        torch.tensor([2.0, -2.0, 0.0, 1e-9], dtype=F64), torch.tensor([0.1, 0.1, 1.0, 1.0], dtype=F64)
    )
    close(low[:2], torch.tensor([2 * np.exp(-0.05), -2 * np.exp(0.05)]), 1e-12)
    close(high[:2], torch.tensor([2 * np.exp(0.05), -2 * np.exp(-0.05)]), 1e-12)
    assert bool((low[2:] < -0.4).all())
    assert bool((high[2:] > 1).all())
    assert bool((high[2:] < 4).all())


def test_the_interval_of_a_skewed_mean_covers():
    """Exponential samples of 32, 4,000 times: 95 % intervals cover 93 to 97.5 %; the plain t interval falls short."""
    x = torch.distributions.Exponential(torch.tensor(1.0, dtype=F64))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sample = x.sample((32, 4000))
    low, high = skewed_mean(sample, 0.95)
    covered = float(((low <= 1) & (high >= 1)).double().mean())
    half = float(scipy.stats.t.ppf(0.975, 31)) * sample.std(0) / 32**0.5
    plain = float(((sample.mean(0) - half <= 1) & (sample.mean(0) + half >= 1)).double().mean())
    assert 0.93 <= covered <= 0.975
    assert plain < covered
