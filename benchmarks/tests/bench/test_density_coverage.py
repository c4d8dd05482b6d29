"""Trials of the bounds of `density`: known spectra, the places looked at, and the table."""

from __future__ import annotations

import pytest
import torch

from bench_cases import needs_data
from density_cases import coverage
from infhess_bench.bench import density_coverage
from infhess_bench.bench.density_coverage import EACH, EXPERIMENT, KNOWN, PARTS, SIZE
from infhess_bench.harness import Row
from infhess_bench.problems import CURVATURE
from util import close


def test_known_spectra_are_those_of_their_matrices():
    for name in KNOWN:
        found = density_coverage.exact(name)
        assert len(found.values) == SIZE
        close(torch.linalg.eigvalsh(found.A), found.values, atol=1e-9)
        gaps = (found.x[:, None] - found.values).abs().min(1).values
        assert bool((found.x.diff() >= 0).all())
        assert float(gaps.max()) > 0


def test_a_cell_has_coverage_and_width():
    rows = density_coverage.repeated(Row(EXPERIMENT, "power law", f"{PARTS[0]}: {EACH}"), 2, PARTS[0])
    each, joint, width = (row.metric for row in rows)
    assert 0.8 <= each <= 1
    assert joint in (0, 0.5, 1)
    assert 0 < width < 0.1
    text = density_coverage.summary(rows)
    assert f"| power law, N = {SIZE} | all data | {100 * each:.1f}" in text


def test_what_lies_outside_of_its_band_is_marked():
    values = {"at each x": 0.5, "at all x at once": 1.0, "mean half-width at each x": 0.02}
    rows = [Row(EXPERIMENT, "power law", f"all data: {name}", metric=value) for name, value in values.items()]
    assert "| 50.0 ✗ | 100.0 | 0.020 |" in density_coverage.summary(rows)


def test_nets_are_measured_with_all_data_and_with_a_part_of_it():
    methods = [(j.template.problem, j.template.method) for j in density_coverage.jobs(0, 4)]
    assert ("digits-mlp", "a part of the data: at each x") in methods
    assert len(methods) == 3 + 2 * 2


@pytest.mark.long
@needs_data
def test_bounds_hold_for_a_net_that_jobs_leave_out():
    each, joint = coverage(torch.linalg.eigvalsh(CURVATURE["mlp/trained"]().dense()), 200)
    assert 0.93 <= each <= 0.985
    assert joint >= 0.93
