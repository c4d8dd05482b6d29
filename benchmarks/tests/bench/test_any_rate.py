"""From any rate and in any units: the whole of it in small, and parts of it alone."""

from __future__ import annotations

import math

import pytest

from infhess.cli.rows import Row, RowFile
from infhess_bench.bench import any_rate, deep_baselines, deep_bench
from infhess_bench.bench.deep_baselines import ADAM, AROUND, RANKED
from infhess_bench.bench.deep_bench import Selection
from infhess_bench.harness.jobs import run as run_jobs
from infhess_bench.harness.methods import Setting


def test_tuning_takes_the_rate_that_ended_lowest():
    rows = [
        Row(any_rate.TUNING, "p", name, 1000, 32, loss=x)
        for name, x in (("sgd: 0.1", 2.0), ("sgd: 1", math.inf), ("sgd: 0.3", 1.0))
    ]
    assert any_rate.best(rows) == {"p/32/sgd": Setting(0.3)}
    assert all(setting.value > 0 for setting in any_rate.tuned().values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_whole_of_it_in_small(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(any_rate, "RATES", (1e-6, 1e2))
    monkeypatch.setattr(deep_baselines, "FIRST", 5)
    used = deep_bench.methods([AROUND["sgd"], RANKED, "sgd"])
    file = RowFile(tmp_path)
    list(run_jobs(any_rate.tuning(Selection([tiny], methods=used, steps=10)), file, 1))
    monkeypatch.setattr(any_rate, "tuned", lambda: any_rate.best(file.rows))
    chosen = Selection([tiny], [0, 1], used, 30)
    list(run_jobs(any_rate.jobs(chosen), file, 1))
    rows = len(file.rows)
    list(run_jobs(any_rate.jobs(chosen), RowFile(tmp_path), 1))
    assert len(RowFile(tmp_path).rows) == rows  # nothing is computed twice
    text = any_rate.report(file.rows, [0, 1], tmp_path)
    assert "around sgd: runs lost, of 4 | 0 | ≤ 0 | yes" in text
    assert "level with sgd, tuned" in text
    assert (tmp_path / "starts.md").read_text(encoding="utf-8").count(f"| {tiny}, sgd |") == 1
    assert (tmp_path / "rank.md").read_text(encoding="utf-8").count(f"| {tiny} |") == 1
    directions, alone = (
        max(r.products for r in file.rows if r.method == m and r.experiment == deep_bench.EXPERIMENT)
        for m in (RANKED, AROUND["sgd"])
    )
    assert directions > alone + deep_baselines.RANK  # the price of directions is counted


def test_a_part_of_it_is_written_without_the_rest(tmp_path, tiny):
    rows = [
        Row(any_rate.STARTS, tiny, f"{AROUND['sgd']}, from {rate:g}", seed, 20, loss=1.0 + 0.1 * seed)
        for rate in any_rate.RATES
        for seed in (0, 1)
    ]
    text = any_rate.report(rows, [0, 1], tmp_path)
    assert "runs lost" in text
    assert "level with" not in text
    assert tiny not in (tmp_path / "rank.md").read_text(encoding="utf-8")


def test_runs_from_all_rates_are_those_of_the_methods_chosen(tiny):
    around = [
        j for j in any_rate.jobs(Selection([tiny], [0], [AROUND["sgd"]])) if j.template.experiment == any_rate.STARTS
    ]
    assert len(around) == len(any_rate.RATES)
    assert {j.template.method for j in any_rate.jobs(Selection([tiny], [0], [ADAM]))} == {ADAM}
