"""The bench of nets: counting to the point, budgets, settings, and the whole of it in small."""

from __future__ import annotations

import math

import pytest
import torch

from convex_cases import Counting
from deep_cases import small
from infhess.bench import deep_baselines, deep_bench, deep_results, every_rate
from infhess.bench.deep_baselines import ADAM, AROUND, METHODS, NO_RATE, RANKED
from infhess.bench.deep_bench import Selection
from infhess.harness.jobs import run as run_jobs
from infhess.harness.methods import Setting, missing
from infhess.harness.rows import Row, RowFile
from infhess.harness.training import Training, curve
from infhess.problems.held_out import net_problem
from infhess.problems.net_problems import DEEP
from infhess.problems.nets import digit_net
from infhess.problems.shuffled import CountedStream, Shuffled


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(DEEP, "tiny", small())
    net_problem.cache_clear()
    yield "tiny"
    net_problem.cache_clear()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of baselines
@pytest.mark.parametrize("method", METHODS)
def test_rows_count_what_was_read_to_the_point_and_budgets_are_equal(method, monkeypatch):
    baseline, problem = METHODS[method], small()
    if baseline.missing:
        pytest.skip(f"{baseline.package} is not installed")
    monkeypatch.setattr("infhess.harness.training.Shuffled", Counting)
    Counting.read = 0
    rows = curve(problem, baseline.make(baseline.default or 0.0), Row("e", "p", "m", 3, 20), 40 * 20, ("",))
    end = [r for r in rows if r.method == "m"][-1]
    assert end.data_points == Counting.read
    work = end.data_points + problem.price * end.products * 20
    assert work >= 40 * 20
    most = 5 * problem.price * 20 * (60 if "paper" in method else 6)  # the last product may go beyond
    assert work <= 40 * 20 + most
    # Slow at their defaults; and CDAT's first step, where curvature along it is slight, may be of any length.
    assert end.loss < rows[0].loss or method in ("sgd", "D-Adaptation", "DoG", "Prodigy", "momentum .9", "CDAT")


def test_all_methods_start_from_the_same_net():
    firsts = set()
    for method in (NO_RATE, ADAM, "schedule-free AdamW"):
        if METHODS[method].missing:
            continue
        problem = small()
        torch.manual_seed(5)
        run = METHODS[method].make(1e-3)(problem, CountedStream(Shuffled(problem.data, 20, torch.Generator())))
        assert isinstance(run, Training)
        firsts.add(float(run.model[0].weight.detach().sum()))
    assert len(firsts) == 1


def test_other_units_are_the_same_function():
    torch.manual_seed(0)
    net = digit_net()
    x = torch.randn(2, 1, 28, 28)
    before = net(x)
    torch.testing.assert_close(deep_bench.InUnits(net, 1e3)(x), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("what", ["loss", "weights"])
def test_other_units_train_alike(what, tiny):
    ends = [deep_bench.rescaled(Row("e", tiny, "m", 0, 20), what, scale, 40 * 20)[0].loss for scale in (1e-3, 1.0, 1e3)]
    assert max(ends) < 1.1 * min(ends)


def test_tuning_takes_the_rate_that_ended_lowest():
    rows = [
        Row(deep_bench.TUNING, "p", name, 1000, 32, loss=x)
        for name, x in (("sgd: 0.1", 2.0), ("sgd: 1", math.inf), ("sgd: 0.3", 1.0))
    ]
    assert deep_bench.best(rows) == {"p/32/sgd": Setting(0.3)}
    assert all(setting.value > 0 for setting in deep_bench.tuned().values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_whole_of_it_in_small(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(deep_bench, "RESCALED", (tiny,))
    monkeypatch.setattr(deep_bench, "RATES", (1e-6, 1e2))
    monkeypatch.setattr(deep_results, "RATES", (1e-6, 1e2))
    monkeypatch.setattr(deep_baselines, "FIRST", 5)
    for name in [m for m in METHODS if m not in (NO_RATE, AROUND["sgd"], RANKED, ADAM, "sgd", "schedule-free AdamW")]:
        monkeypatch.delitem(METHODS, name)
    file = RowFile(tmp_path)
    tuning = list(deep_bench.tuning(Selection([tiny], steps=10)))
    list(run_jobs(tuning, file, 1))
    monkeypatch.setattr(deep_bench, "tuned", lambda: deep_bench.best(file.rows))
    for jobs in (deep_bench.jobs, deep_bench.starts, deep_bench.units):
        list(run_jobs(jobs(Selection([tiny], [0, 1], steps=30)), file, 1))
    rows = len(file.rows)
    list(run_jobs(deep_bench.jobs(Selection([tiny], [0, 1], steps=30)), RowFile(tmp_path), 1))
    assert len(RowFile(tmp_path).rows) == rows  # nothing is computed twice
    text = deep_results.report(file.rows, [0, 1], tmp_path)
    assert "tiny" in text
    found = {t.what.split(" (")[0]: t for t in deep_results.targets(deep_results.Nets(file.rows, [0, 1]))}
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
    assert {j.template.method for j in deep_bench.jobs(Selection([tiny], [0], chosen))} == {NO_RATE, ADAM}
    assert not list(deep_bench.starts(Selection([tiny], [0], chosen)))
    around = list(deep_bench.starts(Selection([tiny], [0], deep_bench.methods([AROUND["sgd"]]))))
    assert len(around) == len(deep_bench.RATES)
    assert not list(deep_bench.units(Selection(["mnist-mlp"], [0], [ADAM])))
    assert deep_bench.names([tiny], quick=True) == [tiny]
    assert deep_bench.names([tiny, tiny]) == [tiny]
    assert {j.template.method.split(":")[0] for j in deep_bench.tuning(Selection([tiny], methods=[ADAM]))} == {ADAM}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("method", [NO_RATE, AROUND["sgd"], RANKED, ADAM])
def test_a_part_of_it_is_written_without_the_rest(method, tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(deep_baselines, "FIRST", 5)
    monkeypatch.setattr(deep_results, "LONG", 10)
    file, chosen = RowFile(tmp_path), deep_bench.methods([method])
    for jobs in (deep_bench.jobs, deep_bench.starts, deep_bench.units):
        list(run_jobs(jobs(Selection([tiny], [0, 1], chosen, 30)), file, 1))
    assert tiny in deep_results.report(file.rows, [0, 1], tmp_path)
    told = "".join(t.what for t in deep_results.targets(deep_results.Nets(file.rows, [0, 1])))
    assert "level with" not in told
    assert "behind" not in told
    assert ("runs lost" in told) == (method == AROUND["sgd"])
    assert tiny not in (tmp_path / "rank.md").read_text(encoding="utf-8")


def test_names_that_are_not_there_are_told_with_those_that_are(monkeypatch):
    with pytest.raises(ValueError, match=r"--problem: expected one of .*mnist-mlp.*; got nets"):
        deep_bench.names(["nets"])
    with pytest.raises(ValueError, match=r"--method: expected one of .*Adam.*; got adam"):
        deep_bench.methods(["adam"])
    monkeypatch.setattr(deep_bench, "missing", lambda _: {"SOAP": "pytorch-optimizer"})
    with pytest.raises(ValueError, match=r"--method: SOAP is not installed; pip install 'pytorch-optimizer'"):
        deep_bench.methods(["SOAP"])
    assert "SOAP" not in deep_bench.methods()


def test_every_rate_of_a_grid_is_a_method_of_its_own(tiny):
    chosen = deep_bench.Selection(["tiny"], [0], [deep_baselines.ROTATED, "AdamW, warm-up and cosine"], 12)
    jobs = list(deep_bench.every_rate(chosen))
    assert [job.template.method for job in jobs] == [
        deep_baselines.ROTATED, *(f"AdamW, warm-up and cosine, {rate:g}" for rate in deep_baselines.RATES),
    ]  # fmt: skip
    text = every_rate.summary([row for job in jobs for row in job.run()])
    assert all(f"| {job.template.method} |" in text for job in jobs)


def test_muon_trains_matrices_and_adamw_all_else():
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    both = deep_baselines.MuonAdamW(list(net.parameters()), lr=1e-3)
    assert [len(part.param_groups[0]["params"]) for part in both.parts] == [1, 3]
