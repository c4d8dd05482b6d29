"""Seconds at equal error: the ladder, the distance, and the tables."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from infhess.spectra.quadrature import Quadrature
from infhess_bench.bench import equal_error
from infhess_bench.bench.equal_error import EXPERIMENT, INFHESS, TOPS, TRACE, TRUTH, Tool
from infhess_bench.bench.timed_nets import FullData, top_error
from infhess_bench.bench.timed_tools import Found, steps
from infhess_bench.harness import Row
from util import F64


def known(values):
    """The truth about a matrix all of whose eigenvalues are known."""
    T, zeros = values[:, None, None], torch.zeros_like(values)
    measure = Quadrature(T, zeros, torch.full_like(values, 1 / len(values)), 1e-16)
    return FullData(values.flip(0)[:5], float(values.sum()), measure)


VALUES = torch.linspace(0, 1, 101, dtype=F64)


@pytest.fixture
def net(monkeypatch, tmp_path):
    """A problem whose truth is known without any computation."""
    monkeypatch.setattr(equal_error, "full_data", lambda name, folder: known(VALUES))
    monkeypatch.setattr(equal_error, "timed_net", lambda name: type("Net", (), {"points": 1000}))
    return tmp_path


def climb(monkeypatch, folder, quantity, call):
    monkeypatch.setitem(equal_error.TOOLS, "mine", Tool({quantity: call}))
    first = next(iter(equal_error.QUANTITIES[quantity].targets))
    return equal_error.climbed(Row(EXPERIMENT, "digits", f"mine: {first}"), "mine", quantity, folder)


def test_a_tool_climbs_until_it_is_there(net, monkeypatch):
    tried = []

    def tool(problem, points, products, g):
        tried.append((points, products))
        return Found(float(VALUES.sum()) * (1 + 20 / points), products, points)

    (row,) = climb(monkeypatch, net, TRACE, tool)
    assert list(dict.fromkeys(tried)) == [(256, 36), (512, 36)]
    assert (row.method, row.data_points, row.products) == ("mine: trace to 5 %", 512, 36)
    assert row.loss == pytest.approx(20 / 512)
    row = replace(row, seconds=0.02)
    slower = replace(row, method=row.method.replace("mine", INFHESS), seconds=1.02)
    text = equal_error.summary([row, slower])
    assert "**0.020 (0.039)**" in text
    assert "| 1.02 (0.039) |" in text
    assert "**" not in equal_error.summary([row])  # nothing to be before


def test_what_is_compiled_counts_with_the_call_that_compiles_it(net, monkeypatch):
    def tool(problem, points, products, g):
        return Found(float(VALUES.sum()), products, points)

    clock = iter([5.0, 0.1, 0.1, 0.1, 0.1, 0.1])
    monkeypatch.setattr(equal_error, "processor_seconds", lambda call: (call(), next(clock))[1])
    monkeypatch.setitem(equal_error.TOOLS, "mine", Tool({TRACE: tool}, compiles=True))
    rows = equal_error.climbed(Row(EXPERIMENT, "digits", "mine: trace to 5 %"), "mine", TRACE, net)
    assert [(r.method, r.seconds) for r in rows] == [
        ("mine: trace to 5 %", 0.1),
        ("mine, first call: trace to 5 %", 5.0),
    ]
    ours = replace(rows[0], method="infhess: trace to 5 %", seconds=1.0)
    text = equal_error.summary([*rows, ours])
    assert "| infhess | – | – | **1.00 (0.000)** | – |" in text
    assert "| mine | – | – | 0.10 (0.000) | – |" in text


def test_each_target_has_the_first_rung_that_is_good_enough(net, monkeypatch):
    def tool(problem, points, products, g):
        return Found(known(VALUES).top * (1 + 20 / points), products, points)

    five, two = climb(monkeypatch, net, TOPS, tool)
    assert (five.method, five.data_points) == ("mine: top five to 5 %", 512)
    assert (two.method, two.data_points) == ("mine: top five to 2 %", 1000)  # all there are


def test_a_tool_that_is_never_there_has_no_seconds(net, monkeypatch):
    (never,) = climb(monkeypatch, net, TRACE, lambda problem, points, products, g: Found(0.0, 1, 1))
    assert math.isnan(never.seconds)
    assert "not reached (1.000)" in equal_error.summary([never])


def test_values_that_are_missing_count_as_one():
    assert top_error(known(VALUES).top[:2], known(VALUES).top) == pytest.approx(3 / 5)


def test_the_distance_of_a_distribution_from_itself_is_zero_and_close_to_zero_does_not_count():
    values = torch.cat([torch.zeros(50, dtype=F64), torch.linspace(0.1, 1, 50, dtype=F64)])
    exact, even = known(values), torch.ones(100, dtype=F64)
    assert equal_error.distance(steps(values, even), exact) < 1e-9
    assert equal_error.distance(steps(values + 1e-4 * (values == 0), even), exact) < 1e-9
    assert equal_error.distance(steps(values + 0.2, even), exact) > 0.1


def test_tools_that_are_not_installed_are_named_and_left_out(monkeypatch, tmp_path):
    monkeypatch.setitem(equal_error.TOOLS, "theirs", Tool({TOPS: lambda *a: None}, ("nowhere_to_be_found",)))
    assert equal_error.missing()["theirs"] == "nowhere_to_be_found"
    titles = [job.title for job in equal_error.jobs(0, tmp_path, quick=True)]
    assert f"digits: {TRUTH}" in titles
    assert f"digits: {INFHESS}: top five to 5 %" in titles
    assert not any("theirs" in title for title in titles)


def test_the_claim_is_a_table_of_its_own():
    cnn = equal_error.CNN
    rows = [Row(EXPERIMENT, cnn, TRUTH), Row(EXPERIMENT, cnn, "infhess.spectrum", seconds=1.25, loss=0.03)]
    assert "| infhess.spectrum | 1.25 | 0.0300 |" in equal_error.summary(rows)
    assert TRUTH not in equal_error.summary(rows)


def test_a_tight_tolerance_stands_beside_lanczos_on_all_points():
    rows = [Row(EXPERIMENT, "1e4 weights", equal_error.TIGHT, seconds=2.0, loss=0.0001)]
    assert f"| {equal_error.TIGHT} | 2.00 | 0.0001 |" in equal_error.summary(rows)
    titles = [job.title for job in equal_error.jobs(0, None)]
    assert f"1e4 weights: {equal_error.TIGHT}" in titles
    assert not any(equal_error.TIGHT in job.title for job in equal_error.jobs(0, None, quick=True))


@pytest.mark.long
def test_infhess_is_there_on_a_small_net(tmp_path):
    jobs = {job.template.method: job for job in equal_error.jobs(0, tmp_path, quick=True)}
    assert jobs[TRUTH].run()[0].metric == 1210
    five, two = jobs["infhess: top five to 5 %"].run()
    assert five.loss <= 0.05
    assert two.loss <= 0.02
    assert five.seconds > 0
