"""Seconds at equal error: the ladder, the distance, and the table."""

from __future__ import annotations

import math

import torch

from infhess.bench import equal_error
from infhess.harness import Row
from util import F64

QUICK = "digits-logistic"


def test_a_tool_climbs_until_it_is_there(monkeypatch):
    truth, tried = float(torch.trace(equal_error.truth_of(QUICK).H)), []

    def tool(problem, probes, g):
        tried.append(probes)
        return truth * (1 + 1 / probes)

    monkeypatch.setitem(equal_error.TOOLS, "mine", ({equal_error.TRACE: tool}, None))
    template = Row(equal_error.EXPERIMENT, QUICK, f"mine: {equal_error.TRACE}", 0, 0)
    (row,) = equal_error.climbed(template, "mine", equal_error.TRACE)
    assert set(tried) == {16, 64}
    assert (row.metric, round(row.loss, 6)) == (64.0, 1 / 64)
    monkeypatch.setitem(equal_error.TOOLS, "mine", ({equal_error.TRACE: lambda p, n, g: 0.0}, None))
    (never,) = equal_error.climbed(template, "mine", equal_error.TRACE)
    assert math.isnan(never.seconds)
    text = equal_error.summary([row])
    assert "mine" in text
    assert "not reached (1.000)" in equal_error.summary([never])


def test_the_distance_of_a_distribution_from_itself_is_zero_and_close_to_zero_does_not_count():
    values = torch.cat([torch.linspace(0.1, 1, 50, dtype=F64), torch.zeros(50, dtype=F64)])
    exact = equal_error.steps(values, torch.ones(100, dtype=F64))
    assert equal_error.distance(exact, values) < 1e-9
    moved = equal_error.steps(values + 1e-4 * (values == 0), torch.ones(100, dtype=F64))
    assert equal_error.distance(moved, values) < 1e-9
    assert equal_error.distance(equal_error.steps(values + 0.2, torch.ones(100, dtype=F64)), values) > 0.1


def test_infhess_is_there():
    jobs = {job.template.method: job for job in equal_error.jobs(0, [QUICK])}
    (row,) = jobs["infhess: density to .02"].run()
    assert row.loss <= 0.02
    assert row.seconds > 0
