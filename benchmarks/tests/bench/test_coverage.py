"""Intervals cover what they say: on Gaussian rows, on real data, along vectors, for traces and bounds."""

from __future__ import annotations

import dataclasses
import os
from functools import partial

import pytest
import torch

from infhess import Hessian, spectrum
from infhess_bench.bench import coverage
from infhess_bench.harness import Row
from small_data import VALUES, gaussian_source, loader, problem, replaced
from util import fast_and_long


@fast_and_long("trials", 20, 150)
def test_95_percent_intervals_cover_95_percent_and_half_or_twice_as_long_would_not(trials):
    hits = {0.5: [], 1.0: [], 2.0: []}
    for seed in range(trials):
        source, g = gaussian_source(seed=1000 + seed)
        found = spectrum(source, 5, generator=g)
        for scale, seen in hits.items():
            low, high = dataclasses.replace(found._ritz, se=scale * found._ritz.se).interval(0.95)
            seen.append((low[:5] <= VALUES[:5]) & (VALUES[:5] <= high[:5]))
    half, whole, twice = (float(torch.stack(seen).double().mean()) for seen in hits.values())
    assert (0.93 if trials > 100 else 0.9) <= whole <= 0.985
    assert half < 0.9
    assert twice > 0.985


def covered(trial, trials, name="digits-logistic", method="along"):
    return coverage.repeated(Row("e", name, method, 7, 64), trials, trial)


@fast_and_long("trials", 6, 40)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_coverage_on_real_data(dtype, trials):
    """MNIST where the data are and there is time, scikit-learn's digits where not: five eigenvalues a trial."""
    name = "mnist-3v5/start" if os.environ.get("INFHESS_DATA") and trials > 10 else "digits-logistic"
    rows = covered(partial(coverage.eigenvalues, dtype=dtype), trials, name, "eigenvalues")
    assert 0.91 - 0.7 / trials <= rows[0].metric <= 1.0
    assert [r.method for r in rows[1:]] == [f"eigenvalues: λ{i}" for i in range(1, 6)]


@fast_and_long("trials", 6, 40)
def test_curvature_along_the_vectors_needs_fresh_data_and_covers(trials):
    (row,) = covered(partial(coverage.along, fresh=256), trials)
    assert 0.9 - 0.7 / trials <= row.metric <= 1.0
    assert row.products == 5 * 32 + 1  # one batch is checked on its own
    assert row.data_points == 256


@fast_and_long("trials", 4, 20)
def test_a_flat_spectrum_is_flagged(trials):
    assert covered(coverage.flat, trials, "flat")[0].metric >= 0.95


@fast_and_long("trials", 6, 40)
def test_the_trace_and_the_upper_bound_cover(trials):
    rows = covered(coverage.scalars, trials, method=coverage.SCALARS)
    assert rows[0].metric >= 0.88 - 0.7 / trials
    assert rows[1].metric >= 0.95 - 0.7 / trials


CASES = {
    "a pass that ends in the middle": (130, lambda data, seed: loader(data, 32, seed)),
    "two batches of 64 of 150": (150, lambda data, seed: loader(data, 64, seed)),
    "dropped remainders": (100, lambda data, seed: loader(data, 30, seed, drop_last=True)),
    "with replacement": (100, lambda data, seed: replaced(data, 20, seed)),
    "a list of batches": (120, lambda data, seed: list(zip(*(t.split(15) for t in data)))),
}


@fast_and_long("trials", 5, 25)
@pytest.mark.parametrize("case", CASES)
def test_small_data_is_covered(case, trials):
    n, batches = CASES[case]
    hits = []
    for seed in range(trials):
        loss, w, data, truth = problem(n, seed)
        low, high = spectrum(Hessian(loss, [w], batches(data, seed)), 3).interval()
        hits.append((low <= truth) & (truth <= high))
    assert float(torch.stack(hits).double().mean()) >= 0.88 - 0.4 / trials
