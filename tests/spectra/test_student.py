"""Quantiles and intervals: against SciPy, at their limits, and on skewed samples."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from infhess.spectra.student import hall, log_interval, probability, skewed_mean, two_sided, weighted_mean
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


def test_past_one_and_a_half_widths_the_exponentials_go_on_as_straight_lines():
    down, up = 2 * (1 - np.exp(-1.5)), 2 * (np.exp(1.5) - 1)
    for x in (1.6, 2.9, 6.0):
        low, high = log_interval(torch.tensor([2.0, -2.0], dtype=F64), torch.tensor([2 * x, 2 * x], dtype=F64))
        close(low, torch.tensor([2 - down * x / 1.5, -2 - up * x / 1.5], dtype=F64), 1e-12)
        close(high, torch.tensor([2 + up * x / 1.5, -2 + down * x / 1.5], dtype=F64), 1e-12)
    low, high = log_interval(torch.tensor(2.0, dtype=F64), torch.tensor(2.8, dtype=F64))
    assert (float(low), float(high)) == pytest.approx((2 * np.exp(-1.4), 2 * np.exp(1.4)))
    assert [float(b) for b in log_interval(torch.zeros(1, dtype=F64), torch.zeros(1, dtype=F64))] == [0.0, 0.0]


@pytest.mark.parametrize("a", [0.7, -0.7, 5.0])
def test_halls_transformation_is_the_cube_root(a):
    x = torch.tensor([-2.0, 0.3, 2.0], dtype=F64)
    expected = 3 / a * (np.cbrt(1 + a * (x.numpy() - a / 6)) - 1)
    close(hall(x, torch.full_like(x, a)), expected, 1e-12)


def test_a_weighted_mean_and_its_variance():
    x, w = torch.tensor([[1.0, 0.0], [2.0, 5.0], [6.0, 1.0]], dtype=F64), torch.tensor([0.5, 0.3, 0.2], dtype=F64)
    mean, variance = weighted_mean(x, w)
    close(mean, torch.tensor([2.3, 1.7], dtype=F64), 1e-12)
    close(variance, ((w[:, None] ** 2) * (x - mean) ** 2).sum(0) / (1 - 0.25 - 0.09 - 0.04), 1e-12)
    equal = weighted_mean(x, torch.full((3,), 1 / 3, dtype=F64))
    close(equal[1], x.var(0) / 3, 1e-12)
    assert bool(weighted_mean(x[:1], torch.ones(1, dtype=F64))[1].isnan().all())


@pytest.mark.parametrize("share", [0.0, 0.75])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=F64)])
def test_a_skewed_mean_is_the_envelope_of_both_intervals(share, weights):
    x = torch.tensor([1.0, 2.0, 3.0, 10.0], dtype=F64)
    w = torch.full((4,), 0.25, dtype=F64) if weights is None else weights
    mean, variance = (float(v) for v in weighted_mean(x, w))
    skewness = float(((w * (x - mean)) ** 3).sum()) / variance**1.5
    se, t = (variance * (1 - share)) ** 0.5, float(scipy.stats.t.ppf(0.95, 1 / float(w @ w) - 1))
    a, ends = torch.tensor(skewness, dtype=F64), torch.tensor([t, -t], dtype=F64)
    by_hall = mean - hall(ends, a) * se
    by_log = log_interval(torch.tensor(mean, dtype=F64), torch.tensor(t * se, dtype=F64))
    low, high = skewed_mean(x[:, None], 0.9, share, weights)
    close(low, torch.minimum(by_hall[:1], by_log[0]), 1e-4)
    close(high, torch.maximum(by_hall[1:], by_log[1]), 1e-4)


def test_one_row_speaks_for_itself_alone():
    x = torch.tensor([[3.0]], dtype=F64)
    assert [float(b) for b in skewed_mean(x, 0.9, 1.0)] == [3.0, 3.0]
    assert all(bool(b.isnan()) for b in skewed_mean(x, 0.9, 0.99))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.1])
def test_a_level_lies_strictly_between_0_and_1(level):
    with pytest.raises(ValueError, match="level"):
        probability(level)
    assert probability(0.5) == 0.5


@pytest.mark.parametrize("level", [1e-6, 1e-4, 1e-2])
def test_quantiles_of_low_levels(level):
    dof = torch.tensor([1.0, 7.0], dtype=F64)
    close(two_sided(level, dof), scipy.stats.t.ppf((1 + level) / 2, dof.numpy()), 1e-3)
