"""The convex bench: counting to the point, settings, ratios, and the whole of it in small."""

from __future__ import annotations

import math

import pytest

from bench_cases import Counting, CountingAll, small
from infhess.cli.rows import Row
from infhess_bench.bench import convex_bench, convex_report
from infhess_bench.bench.convex_baselines import METHODS, ONLINE
from infhess_bench.harness.curves import EXACT, START
from infhess_bench.harness.methods import Setting
from infhess_bench.harness.tables import plain
from infhess_bench.harness.training import AVERAGED, curve
from infhess_bench.problems.convex_problems import logistic


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a baseline's own
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", [small(), small(logistic, l2=1e-2)], ids=["squares", "logistic"])
def test_rows_count_what_was_read_to_the_point(method, problem, monkeypatch):
    baseline = METHODS[method]
    if baseline.missing:
        pytest.skip(f"{baseline.package} is not installed")
    monkeypatch.setattr("infhess_bench.harness.training.Shuffled", CountingAll)
    Counting.read = 0
    setting = baseline.default or (baseline.grid[0] if baseline.grid else 0.0)
    rows = curve(problem, baseline.make(setting), Row("e", "p", "m", 3, 16), 1500)
    assert rows[-1].data_points == Counting.read
    assert {r.method for r in rows} >= {"m" + name for name in baseline.models}


@pytest.mark.parametrize("method", [m for m in METHODS if not METHODS[m].grid])
def test_methods_without_a_setting_converge(method):
    problem = small(logistic, l2=1e-2)
    best, start = problem.value(problem.solved()), problem.value(problem.model())
    rows = curve(problem, METHODS[method].make(0.0), Row("e", "p", "m", 0, 16), 6000, METHODS[method].models[:1])
    assert (rows[-1].loss - best) / (start - best) < 0.02


def test_tuning_takes_the_lowest_score_whatever_the_outcome():
    rows = [
        Row(convex_bench.TUNING, "p", name, 1000, 32, metric=score)
        for name, score in (
            ("sgd: 0.1", -1.0),
            ("sgd: 0.1, averaged", -2.0),
            ("sgd: 1", 3.0),
            ("Adam, cosine: 0.01", -1.5),
        )
    ]
    assert convex_bench.best(rows) == {
        "p/32/sgd": Setting(0.1, AVERAGED),
        "p/32/Adam, cosine": Setting(0.01, ""),
    }


def test_the_packaged_settings_are_readable():
    assert all(isinstance(s, Setting) and s.value > 0 for s in convex_bench.tuned().values())


def test_work_counts_products_at_their_cost_and_ratios_name_the_best_baseline():
    ends = [Row(convex_bench.EXPERIMENT, "p", EXACT, loss=0.0), Row(convex_bench.EXPERIMENT, "p", START, loss=1.0)]
    cost = Row(convex_bench.EXPERIMENT, "p", convex_bench.COST, 0, 32, metric=2.0)
    runs = [
        Row(convex_bench.EXPERIMENT, "p", method, seed, 32, points, products, seconds, loss=0.005)
        for method, points, products, seconds in (
            (ONLINE, 1000, 10, 2.0),
            ("a, tuned", 3000, 0, 1.0),
            ("b, tuned", 9000, 0, 9.0),
        )
        for seed in (100, 101)
    ]
    axes = convex_bench.Axes([*ends, cost, *runs])
    assert axes.to("work", "p", ONLINE, 32, 1e-2) == 1000 + 2 * 10 * 32
    assert axes.to("data points", "p", ONLINE, 32, 1e-3) == math.inf
    line = next(x for x in convex_report.ahead(axes, (1e-2, 1e-3)) if x[:2] == ["p, 32", "1e-02"])
    assert line[2:] == ["1,000", "3.00 (a)", "1.83 (a)", "0.50 (a)"]
    assert "nobody" in convex_report.ahead(axes, (1e-3,))[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_whole_bench_in_small(tmp_path):
    budgets = {"breast-cancer": 700}
    rows = []
    for job in [*convex_bench.jobs([7], budgets), *convex_bench.stability([7], budgets)]:
        found = job.run()
        assert all(r.seed in (0, 7) for r in found)
        rows += found
    text = convex_report.report(rows, [7], tmp_path)
    assert "| breast-cancer, 32 | 1e-01 |" in text
    assert "diverged, in 4 runs" in text
    methods = {r.method for r in rows}
    for name, baseline in METHODS.items():
        wanted = [name] if not baseline.grid else [f"{name}, tuned", *([name] if baseline.default else [])]
        assert baseline.missing or set(wanted) <= methods
    for name in ("summary.md", "targets.md", "table.md", "report.html", "convex-32.svg", "convex-256.svg"):
        assert (tmp_path / name).stat().st_size > 100
    table = (tmp_path / "table.md").read_text()
    assert "scikit-learn lbfgs" in table
    assert plain(ONLINE) in table
