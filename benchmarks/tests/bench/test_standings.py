"""Standings: who is ahead, what it takes to reach a goal, and profiles, on rows made by hand."""

from __future__ import annotations

import math

import pytest

from infhess.cli.rows import Row, RowFile
from infhess_bench.bench import deep_results
from infhess_bench.bench.deep_baselines import ADAM, COSINE, SCHEDULE_FREE
from infhess_bench.bench.deep_bench import EXPERIMENT, Selection, beyond, jobs, method_of
from infhess_bench.bench.standings import COSTS, MINE, Standings, behind_until, default_of, reached
from infhess_bench.harness.jobs import run as run_jobs
from infhess_bench.harness.training import ACCURACY, ITERATES


def curve(problem, method, losses, seed=0, test=1.0, seconds=1.0):
    """A run whose rows are 100 steps apart."""
    return [
        Row(EXPERIMENT, problem, method, seed, 20, 2000 * i, 0, seconds * i, loss, test)
        for i, loss in enumerate(losses, 1)
    ]


@pytest.fixture
def standings(tiny):
    rows = [
        *curve(tiny, MINE, (1.0, 0.1, 0.01), test=0.5),
        *curve(tiny, f"{COSINE}, 0.001", (2.0, 1.0, 0.5), test=0.6),
        *curve(tiny, f"{COSINE}, 0.01", (2.0, 0.4, 0.1), test=0.9, seconds=0.5),
        *curve(tiny, f"{ADAM}, 0.001", (1.0, 0.8, 0.02), test=0.4),
        *curve(tiny, f"{ADAM}, 0.01", (1.0, 0.8, 0.005), test=0.7),
        Row(EXPERIMENT, tiny, MINE + ACCURACY, 0, 20, 6000, metric=0.9),
        Row(EXPERIMENT, tiny, f"{ADAM}, 0.001{ACCURACY}", 0, 20, 6000, metric=0.95),
    ]
    return Standings(rows, [0])


def test_defaults_and_tuned_peers_measure_by_measure(standings, tiny):
    assert standings.best(tiny, "objective", tuned=False) == f"{ADAM}, 0.001"
    assert standings.best(tiny, "objective", tuned=True) == f"{ADAM}, 0.01"
    assert standings.best(tiny, "test loss", tuned=True) == f"{ADAM}, 0.001"
    assert standings.tuned(tiny, COSINE) == f"{COSINE}, 0.01"
    assert standings.ratio(tiny, "objective", tuned=False) == pytest.approx(0.5)
    assert standings.ratio(tiny, "objective", tuned=True) == pytest.approx(2)
    assert standings.ratio(tiny, "test error", tuned=True) == pytest.approx(2)
    assert standings.peers(tiny) == [COSINE, ADAM]


def test_targets_say_what_was_measured(standings):
    found = {t.what.partition(" (")[0]: t for t in deep_results.targets(standings)}
    ahead = "development, objective: ahead of"
    assert found[f"{ahead} all peers at their defaults, share of 1"].met
    assert not found[f"{ahead} the best tuned peer, share of 1"].met
    assert not found[f"{ahead} the best tuned peer or within 10 % of it, share of 1"].met
    assert not found["development, test error: ahead of the best tuned peer or within 10 % of it, share of 1"].met
    assert found["development, test accuracy: within 10 % of that of the best tuned peer, share of 1"].met
    race = f"development: fewer {{}} to the final objective of {COSINE}, tuned, share of 1"
    assert found[race.format("gradients")].met  # 200 against 300
    assert not found[race.format("CPU seconds")].met  # 2 against 1.5


def test_the_cost_of_a_goal_is_between_two_rows(tiny):
    run = curve(tiny, "m", (1.0, 0.01))
    assert reached(run, 0.1, COSTS["gradients"]) == pytest.approx(150)
    assert reached(run, 1.0, COSTS["gradients"]) == 100
    assert reached(run, 1e-3, COSTS["gradients"]) == math.inf


def test_a_slower_start_is_seen(tiny):
    rival = default_of(SCHEDULE_FREE)
    other = curve(tiny, rival, (1.0, 0.5, 0.2))
    ends = {0.0: (0.9, 0.4, 0.1), 1 / 3: (1.1, 0.4, 0.1), 2 / 3: (0.9, 0.6, 0.1), 1.0: (1.1, 0.4, 0.3)}
    for share, losses in ends.items():
        standings = Standings([*other, *curve(tiny, MINE, losses)], [0])
        assert behind_until(standings, tiny, rival) == pytest.approx(share)
    assert behind_until(standings, tiny, rival, first=1.1) == 0


def test_profiles_are_ratios_to_the_best_problem_by_problem():
    values = {"p": {"a": 1.0, "b": 3.0}, "q": {"a": math.inf, "b": 2.0}, "r": {"a": 4.0, "b": 2.0, "c": math.nan}}
    assert deep_results.profile(values) == {"a": [1, 2, math.inf], "b": [1, 1, 3]}


def test_rates_belong_to_the_longest_name_that_fits():
    assert method_of("Prodigy, schedule-free, 0.1") == "Prodigy, schedule-free"
    assert method_of("Prodigy, 0.1") == "Prodigy"
    assert method_of(MINE) == MINE


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_whole_of_it_in_small(tmp_path, tiny):
    file, chosen = RowFile(tmp_path), Selection([tiny, f"{tiny} ×2"], [0, 1], [MINE, COSINE, ADAM], 20)
    list(run_jobs(jobs(chosen), file, 1))
    list(run_jobs(beyond(chosen, file.rows), file, 1))
    count = len(file.rows)
    list(run_jobs([*jobs(chosen), *beyond(chosen, file.rows)], RowFile(tmp_path), 1))
    assert len(RowFile(tmp_path).rows) == count  # nothing is computed twice
    text = deep_results.report(file.rows, [0, 1], tmp_path)
    assert f"{tiny} ×2" in text
    assert "runs lost, of 4 | 0 | ≤ 0 | yes" in text
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert all(f"| {COSINE}, {rate} |" in table for rate in ("0.001", "0.01", "0.1"))  # 0.01 is an edge
    seen = [row for row in file.rows if row.problem == tiny and row.method == MINE + ITERATES]
    assert {row.seed for row in seen} == {0, 1}
    assert all(0 <= row.loss < 10 and 0 < row.metric < 10 for row in seen)
    figures = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert figures.count("<svg") == 3  # profile, learning rates, iterates
    assert "How far the newest iterate z is from the average x" in figures
