"""Drift: what is compared, written out step by step, and how certain a verdict has to be."""

from __future__ import annotations

import pytest
import torch

from infhess.optim.preconditioning.drift import Drift, _certainly_off, _correlations, _displacements
from util import F64, close, randn

K, STEPS = 3, 60
C, RATES = randn(STEPS, K), 0.1 + randn(STEPS, seed=1).abs()
SHARES = randn(STEPS, seed=4).abs().clamp(max=1)
VALUES, WEIGHTS = 1 + randn(K, seed=2).abs(), randn(K, seed=3).abs()


def test_gradients_are_compared_with_the_next_free_of_a_mean_of_8_and_16_steps_before():
    kicks, answers, expected = _correlations(C, RATES, SHARES, VALUES, WEIGHTS)
    steps = range(16, STEPS - 1)
    close(kicks, torch.stack([C[t] - C[t - 8] for t in steps]), 1e-12)
    close(answers, torch.stack([C[t + 1] - C[t - 16] for t in steps]), 1e-12)
    close(
        expected, torch.stack([-RATES[t] * SHARES[t] / 4 * WEIGHTS * VALUES * (C[t] - C[t - 8]) for t in steps]), 1e-12
    )


@pytest.mark.parametrize(("decay", "weight"), [(0.5, 1.0), (0.9, 0.1)])
def test_displacements_are_those_of_momentum(decay, weight):
    v, d = torch.zeros(K, dtype=F64), []
    for t in range(STEPS):
        v = decay * v + weight * WEIGHTS * SHARES[t] * C[t]
        d.append(-RATES[t] * v)
    moves, changes, expected = _displacements(C, RATES, SHARES, VALUES, WEIGHTS, decay, weight)
    close(moves, torch.stack(d[:-2]), 1e-5)  # what is left of a gradient is followed down to a millionth
    close(changes, C[2:] - C[1:-1], 1e-12)
    close(expected, VALUES * torch.stack(d[1:-1]), 1e-5)


@pytest.mark.parametrize(("shortened", "bounded"), [(0, False), (20, False), (21, True), (80, True)])
def test_a_quarter_of_the_last_80_steps_may_be_shortened(shortened, bounded):
    drift = Drift()
    for t in range(300):
        drift.see(C[0], {"lr": 1.0}, share=0.5 if t < 100 or t >= 300 - shortened else 1.0)
    assert drift.bounded() is bounded


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("ratio", "off"), [(0.49, True), (0.51, False), (1.0, False), (1.9, False), (2.1, True)])
def test_curvature_is_off_beyond_twice_and_below_half_of_what_was_predicted(ratio, off, sign):
    assert _certainly_off(C, sign * ratio * C, sign * C, WEIGHTS) is off


@pytest.mark.parametrize(("spread", "off"), [(0.30, True), (0.37, False)])
def test_a_verdict_takes_three_standard_errors(spread, off):
    # One direction: o = 1 and p = 0.4 ± spread, so that o − 2p is 0.2 ± 2 spread, over √100: 3 errors at a spread of 0.332.
    p = 0.4 + spread * torch.tensor([1.0, -1.0], dtype=F64).repeat(50)[:, None]
    one = torch.ones(100, 1, dtype=F64)
    assert _certainly_off(one, one, p, torch.ones(1, dtype=F64)) is off


def noise_that_does_not_answer(drift, steps, seed=0):
    """Gradients of independent noise in many directions: those before do not come back in them, as they should."""
    for c in randn(steps, 200, seed=seed):
        drift.see(c, {"lr": 1.0})
    return drift


def test_a_verdict_takes_80_steps():
    one = torch.ones(200, dtype=F64)
    assert not Drift().due(one, 0 * one)
    assert not noise_that_does_not_answer(Drift(), 79).due(one, 0 * one)
    assert noise_that_does_not_answer(Drift(), 80).due(one, 0 * one)
    assert not noise_that_does_not_answer(Drift(), 80).due(
        0.0 * one, 0 * one
    )  # nothing was predicted, nothing was seen


def test_the_last_1024_steps_are_remembered_in_their_order():
    # Gradients w + e on ½ |w|² at a rate of ½, after some that do not answer to the steps at all.
    long, short, w = noise_that_does_not_answer(Drift(), 700), Drift(), torch.zeros(200, dtype=F64)
    for e in randn(1024, 200, seed=5):
        for drift in (long, short):
            drift.see(w + e, {"lr": 0.5})
        w = w - 0.5 * (w + e)
    one, scales = torch.ones(200, dtype=F64), torch.logspace(-1, 1, 40).tolist()
    verdicts = [[drift.due(scale * one, 0 * one) for scale in scales] for drift in (long, short)]
    assert verdicts[0] == verdicts[1]
    assert {True, False} == set(verdicts[0])
