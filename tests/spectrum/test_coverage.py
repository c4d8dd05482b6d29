"""Intervals cover what they say: on Gaussian rows, on real data, along vectors, for traces and bounds."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

from infhess import Hessian, spectrum
from infhess.bench import coverage
from small_data import VALUES, gaussian_source, loader, problem, replaced


def covered(scale, trials=150):
    hits = []
    for seed in range(trials):
        source, g = gaussian_source(seed=1000 + seed)
        found = spectrum(source, 5, generator=g)
        errors = dataclasses.replace(found._ritz, se=scale * found._ritz.se)
        low, high = errors.interval(0.95)
        hits.append((low[:5] <= VALUES[:5]) & (VALUES[:5] <= high[:5]))
    return float(torch.stack(hits).double().mean())


@pytest.fixture(scope="module")
def shares():
    return {scale: covered(scale) for scale in (0.5, 1.0, 2.0)}


def test_95_percent_intervals_cover_95_percent(shares):
    assert 0.93 <= shares[1.0] <= 0.985


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_intervals_half_or_twice_as_long_would_not(shares, scale):
    assert not 0.93 <= shares[scale] <= 0.985


REAL = "mnist-3v5/start" if os.environ.get("INFHESS_DATA") else "digits-logistic"


def test_coverage_on_real_data():
    """MNIST where the data are, scikit-learn's digits where not: 40 trials of five, in double and in single precision."""
    for dtype in ("float64", "float32"):
        share = coverage.eigenvalues(REAL, 64, 7, 40, dtype)[0].metric
        assert 0.91 <= share <= 1.0, dtype


def test_curvature_along_the_vectors_needs_fresh_data_and_covers():
    row = coverage.along("digits-logistic", 64, 256, 7, 40)[0]
    assert 0.9 <= row.metric <= 1.0
    assert row.products == 5 * 32
    assert row.data_points == 256


def test_a_flat_spectrum_is_flagged():
    assert coverage.flat(64, 7, 20)[0].metric >= 0.95


def test_the_trace_and_the_upper_bound_cover():
    rows = coverage.scalars("digits-logistic", 64, 7, 40)
    assert rows[0].metric >= 0.88
    assert rows[1].metric >= 0.95


CASES = {
    "a pass that ends in the middle": (130, lambda data, seed: loader(data, 32, seed)),
    "two batches of 64 of 150": (150, lambda data, seed: loader(data, 64, seed)),
    "dropped remainders": (100, lambda data, seed: loader(data, 30, seed, drop_last=True)),
    "with replacement": (100, lambda data, seed: replaced(data, 20, seed)),
    "a list of batches": (120, lambda data, seed: list(zip(*(t.split(15) for t in data)))),
}


@pytest.mark.parametrize("case", CASES)
def test_small_data_is_covered(case):
    n, batches = CASES[case]
    hits = []
    for seed in range(25):
        loss, w, data, truth = problem(n, seed)
        low, high = spectrum(Hessian(loss, [w], batches(data, seed)), 3).interval()
        hits.append((low <= truth) & (truth <= high))
    assert float(torch.stack(hits).double().mean()) >= 0.88
