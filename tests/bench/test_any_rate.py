"""From any rate and in any units: the whole of it in small, and parts of it alone."""

from __future__ import annotations

import math

import pytest
import torch

from infhess.bench import any_rate, any_rate_report, deep_baselines, deep_bench
from infhess.bench.deep_baselines import ADAM, AROUND, METHODS, NO_RATE, RANKED
from infhess.bench.deep_bench import Selection
from infhess.bench.safety import InUnits
from infhess.harness.jobs import run as run_jobs
from infhess.harness.methods import Setting, missing
from infhess.harness.rows import Row, RowFile
from infhess.problems.nets import digit_net


def test_other_units_are_the_same_function():
    torch.manual_seed(0)
    net = digit_net()
    x = torch.randn(2, 1, 28, 28)
    before = net(x)
    torch.testing.assert_close(InUnits(net, 1e3)(x), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["loss", "weights"])
def test_other_units_train_alike(what, tiny):
    ends = [any_rate.rescaled(Row("e", tiny, "m", 0, 20), what, scale, 40 * 20)[0].loss for scale in (1e-3, 1.0, 1e3)]
    assert max(ends) < 1.1 * min(ends)


def test_tuning_takes_the_rate_that_ended_lowest():
    rows = [
        Row(any_rate.TUNING, "p", name, 1000, 32, loss=x)
        for name, x in (("sgd: 0.1", 2.0), ("sgd: 1", math.inf), ("sgd: 0.3", 1.0))
    ]
    assert any_rate.best(rows) == {"p/32/sgd": Setting(0.3)}
    assert all(setting.value > 0 for setting in any_rate.tuned().values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_whole_of_it_in_small(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(any_rate, "RESCALED", (tiny,))
    monkeypatch.setattr(any_rate, "RATES", (1e-6, 1e2))
    monkeypatch.setattr(any_rate_report, "RATES", (1e-6, 1e2))
    monkeypatch.setattr(deep_baselines, "FIRST", 5)
    used = deep_bench.methods([NO_RATE, AROUND["sgd"], RANKED, ADAM, "sgd"])
    file = RowFile(tmp_path)
    tuning = list(any_rate.tuning(Selection([tiny], methods=used, steps=10)))
    list(run_jobs(tuning, file, 1))
    monkeypatch.setattr(any_rate, "tuned", lambda: any_rate.best(file.rows))
    for jobs in (any_rate.jobs, any_rate.starts, any_rate.units):
        list(run_jobs(jobs(Selection([tiny], [0, 1], used, 30)), file, 1))
    rows = len(file.rows)
    list(run_jobs(any_rate.jobs(Selection([tiny], [0, 1], used, 30)), RowFile(tmp_path), 1))
    assert len(RowFile(tmp_path).rows) == rows  # nothing is computed twice
    text = any_rate_report.report(file.rows, [0, 1], tmp_path)
    assert "tiny" in text
    found = {t.what.split(" (")[0]: t for t in any_rate_report.targets(any_rate_report.Nets(file.rows, [0, 1]))}
    lost = next(t for what, t in found.items() if "around sgd: runs lost" in what)
    assert lost.met
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "never run on" not in page
    assert "<svg" in page
    assert all(method in page for method in missing(METHODS))
    assert (tmp_path / "starts.md").read_text(encoding="utf-8").count(f"| {tiny}, sgd |") == 1
    assert (tmp_path / "rank.md").read_text(encoding="utf-8").count(f"| {tiny} |") == 1
    directions, alone = (
        max(r.products for r in file.rows if r.method == m and r.experiment == deep_bench.EXPERIMENT)
        for m in (RANKED, AROUND["sgd"])
    )
    assert directions > alone + deep_baselines.RANK  # the price of directions is counted


def test_one_problem_and_some_methods_are_run_alone(tiny):
    chosen = deep_bench.methods([NO_RATE, ADAM])
    assert {j.template.method for j in any_rate.jobs(Selection([tiny], [0], chosen))} == {NO_RATE, ADAM}
    assert not list(any_rate.starts(Selection([tiny], [0], chosen)))
    around = list(any_rate.starts(Selection([tiny], [0], deep_bench.methods([AROUND["sgd"]]))))
    assert len(around) == len(any_rate.RATES)
    assert not list(any_rate.units(Selection(["mnist-mlp"], [0], [ADAM])))
    assert deep_bench.names([tiny, tiny]) == [tiny]
    assert {j.template.method.split(":")[0] for j in any_rate.tuning(Selection([tiny], methods=[ADAM]))} == {ADAM}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("method", [NO_RATE, AROUND["sgd"], RANKED, ADAM])
def test_a_part_of_it_is_written_without_the_rest(method, tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(deep_baselines, "FIRST", 5)
    monkeypatch.setattr(any_rate_report, "LONG", 10)
    file, chosen = RowFile(tmp_path), deep_bench.methods([method])
    for jobs in (any_rate.jobs, any_rate.starts, any_rate.units):
        list(run_jobs(jobs(Selection([tiny], [0, 1], chosen, 30)), file, 1))
    assert tiny in any_rate_report.report(file.rows, [0, 1], tmp_path)
    told = "".join(t.what for t in any_rate_report.targets(any_rate_report.Nets(file.rows, [0, 1])))
    assert "level with" not in told
    assert "behind" not in told
    assert ("runs lost" in told) == (method == AROUND["sgd"])
    assert tiny not in (tmp_path / "rank.md").read_text(encoding="utf-8")
