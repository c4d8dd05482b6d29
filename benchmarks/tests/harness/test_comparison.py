"""One comparison: which jobs there are, what they are named, and the settings that tuning finds."""

from __future__ import annotations

import pickle

import pytest

from bench_cases import small
from infhess.cli.rows import Row
from infhess_bench.harness.comparison import TUNING_SEED, Cell, Comparison, best_settings, read_settings, write_settings
from infhess_bench.harness.methods import Baseline, Setting, adam, missing, online, sgd
from infhess_bench.harness.training import AVERAGED, ends

CELLS = [Cell("p", 16, 600), Cell("q", 32, 600)]
METHODS = {
    "online": Baseline(online, models=(AVERAGED,)),
    "sgd": Baseline(sgd, (1e-3, 1e-2)),
    "Adam": Baseline(adam, (1e-2,), 1e-3),
    "absent": Baseline(adam, (1e-2,), 1e-3, package="no-such-package"),
}


def problem(name):
    return small()


def test_methods_run_as_they_come_and_as_tuned_on_every_cell_and_seed():
    settings = {"p/16/sgd": Setting(1e-2, AVERAGED), "p/16/Adam": Setting(1e-2)}
    found = {job.key[1:] for job in Comparison("e", problem).jobs(CELLS, METHODS, [3, 4], settings)}
    p, q = ({(m, s) for n, m, s, _ in found if n == name} for name in "pq")
    assert p == {(m, s) for m in ("online", "sgd, tuned", "Adam", "Adam, tuned") for s in (3, 4)}
    assert q == {(m, s) for m in ("online", "Adam") for s in (3, 4)}  # sgd has no default
    assert missing(METHODS) == {"absent": "no-such-package"}


def test_tuning_tries_the_grid_and_the_default_with_all_outcomes_on_a_seed_of_its_own():
    jobs = list(Comparison("e", problem, ends).tuning(CELLS[:1], METHODS))
    assert [job.template.method for job in jobs] == ["sgd: 0.001", "sgd: 0.01", "Adam: 0.001", "Adam: 0.01"]
    rows = pickle.loads(pickle.dumps(jobs[0])).run()
    assert [(r.method, r.seed) for r in rows] == [(f"sgd: 0.001{m}", TUNING_SEED) for m in ("", AVERAGED)]
    assert {r.data_points for r in rows} == {608}


@pytest.mark.parametrize("model", ["", AVERAGED])
def test_a_run_gives_one_outcome_under_its_own_name(model):
    both = Comparison("e", problem)._job(Row("e", "p", "m", 3, 16), 600, sgd, 1e-3, ("", AVERAGED)).run()
    alone = Comparison("e", problem).job(CELLS[0], "m", sgd, Setting(1e-3, model), 3).run()
    assert [r.loss for r in alone] == [r.loss for r in both if r.method == f"m{model}"]
    assert {r.method for r in alone} == {"m"}


def test_the_best_settings_come_back_from_a_file(tmp_path):
    tried = {"sgd: 0.1": 3.0, f"sgd: 0.1{AVERAGED}": 2.0, "sgd: 1": float("inf"), "exact solution": 0.0}
    rows = [Row("e", "p", method, TUNING_SEED, 16, loss=loss) for method, loss in tried.items()]
    found = best_settings(rows, lambda r: r.loss)
    assert found == {"p/16/sgd": Setting(0.1, AVERAGED)}
    path = write_settings(found, tmp_path / "settings.json")
    assert read_settings(path.read_text(encoding="utf-8")) == found
