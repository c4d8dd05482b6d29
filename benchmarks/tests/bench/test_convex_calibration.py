"""Whether the bound on the gap holds: over many runs it is at least the true gap in most passes, and not far above it."""

from __future__ import annotations

import os
from statistics import median

import pytest

from bench_cases import small
from infhess_bench.bench import convex_calibration
from infhess_bench.bench.convex_calibration import HOLDS, MEMORY, TALL, TIGHT, Case, held, measured, ratios
from infhess_bench.problems.convex_problems import CONVEX, logistic, poisson, softmax, squares


def checked(jobs):
    """Run them: all that the bench aims at holds, and every run arrives."""
    found = measured([row for job in jobs for row in job.run()])
    assert held(found) >= HOLDS
    assert median(ratios(found)) <= TIGHT
    last = {m.run: m.gap for m in found}
    assert max(last.values()) <= convex_calibration.TARGET
    return found


def test_the_bound_holds_on_small_problems(monkeypatch):
    losses = {"squares": (squares, 1), "logistic": (logistic, 1), "softmax": (softmax, 4), "poisson": (poisson, 1)}
    cases = []
    for i, (name, (loss, outputs)) in enumerate(losses.items()):
        monkeypatch.setitem(CONVEX, name, lambda loss=loss, outputs=outputs: small(loss, outputs, n=1500))
        cases += [(Case(name, 1500, l2, i), (1, 3), (256 if i % 2 else 32,)) for l2 in (1e-5, 1e-2)]
    monkeypatch.setattr(convex_calibration, "cases", lambda quick: cases)
    assert len(checked(convex_calibration.jobs())) > 100


@pytest.mark.long
def test_the_bound_holds_on_a_part_of_the_bench(monkeypatch):
    """Every fifth problem of `infhess bench convex --calibration`, which has all of them."""
    chosen = convex_calibration.cases()[::5]
    if not os.environ.get("INFHESS_DATA"):
        chosen = [c for c in chosen if c[0].problem in (*convex_calibration.QUICK, TALL)]
    monkeypatch.setattr(convex_calibration, "cases", lambda quick: chosen)
    checked(job for job in convex_calibration.jobs() if not job.template.method.startswith(MEMORY))


def test_the_bound_holds_with_little_memory():
    """Fewer points than weights are kept: L-BFGS, in more passes than it is given to get to the end."""
    case = Case("digits", 1797, 1e-2)
    jobs = [j for j in convex_calibration.jobs() if j.arguments[0] == case and "pool" not in j.template.method]
    assert [j.template.method for j in jobs] == ["exact solution", "memory for 1/8"]
    found = measured([row for job in jobs for row in job.run()])
    assert held(found) >= HOLDS
    assert {m.problem for m in found} == {"digits, little memory"}


def test_the_bench_has_two_hundred_runs_over_all_sizes():
    jobs = [job for job in convex_calibration.jobs() if job.template.method.startswith("pool")]
    assert len({job.key for job in jobs}) == len(jobs) >= 200
    cases = [job.arguments[0] for job in jobs]
    assert (min(c.n for c in cases), max(c.n for c in cases)) == (500, 100_000)
    assert (min(c.l2 for c in cases), max(c.l2 for c in cases)) == (1e-6, 1e-2)


def test_the_report_in_small(tmp_path):
    def row(method, loss, bound=0.0, batch=32):
        return convex_calibration.Row("e", "p, n 9", method, 0, batch, loss=loss, metric=bound)

    rows = [row("exact solution", 1.0, batch=0), row("start", 2.0, batch=0)]
    rows += [row("pool 1/1", 1.1, 0.2), row("pool 1/1", 1 + 1e-10, 0.5e-10), row("pool 1/2", 1.5, 0.75)]
    text = convex_calibration.report(rows, tmp_path)
    assert "| p | 2 | 3 | 66.7 % | 1.50 | 1 |" in text
    assert "| share of passes in which gap_upper(0.95) is at least the gap | 0.667 | ≥ 0.93 | no |" in text
    assert {p.name for p in tmp_path.iterdir()} == {"table.md", "targets.md"}
