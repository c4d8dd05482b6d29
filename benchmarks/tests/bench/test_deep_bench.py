"""The bench of nets: counting to the point, budgets, rates and lengths."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from bench_cases import Counting
from deep_cases import small
from infhess.cli.rows import Row
from infhess_bench.bench import deep_baselines, deep_bench
from infhess_bench.bench.deep_baselines import ADAM, COMPARED, COSINE, METHODS, MUON, NO_RATE, ROTATED, SOAP
from infhess_bench.bench.deep_bench import Selection
from infhess_bench.bench.safety import NETS, labelled
from infhess_bench.harness.training import ACCURACY, WALL, Training, curve
from infhess_bench.problems.net_sets import SETS, SLOW, net_problem
from infhess_bench.problems.shuffled import CountedStream, Shuffled


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of baselines
@pytest.mark.parametrize("method", METHODS)
def test_rows_count_what_was_read_to_the_point_and_budgets_are_equal(method, monkeypatch):
    baseline, problem = METHODS[method], small()
    if baseline.missing:
        pytest.skip(f"{baseline.package} is not installed")
    monkeypatch.setattr("infhess_bench.harness.training.Shuffled", Counting)
    Counting.read = 0
    rows = curve(problem, baseline.make(baseline.default or 0.0), Row("e", "p", "m", 3, 20), 40 * 20, ("",))
    end = [r for r in rows if r.method == "m"][-1]
    assert end.data_points == Counting.read
    work = end.data_points + problem.price * end.products * 20
    assert work >= 40 * 20
    most = 5 * problem.price * 20 * 6  # the last product may go beyond
    assert work <= 40 * 20 + most
    # Slow at their defaults.
    assert end.loss < rows[0].loss or method in ("sgd", "D-Adaptation", "DoG", "Prodigy", "momentum .9")


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


def test_names_that_are_not_there_are_told_with_those_that_are(monkeypatch):
    with pytest.raises(ValueError, match=r"--problem: expected one of .*mnist-mlp.*; got nets"):
        deep_bench.names(["nets"])
    with pytest.raises(ValueError, match=r"--method: expected one of .*Adam.*; got adam"):
        deep_bench.methods(["adam"])
    monkeypatch.setattr(deep_bench, "missing", lambda _: {"SOAP": "pytorch-optimizer"})
    with pytest.raises(ValueError, match=r"--method: SOAP is not installed; pip install 'pytorch-optimizer'"):
        deep_bench.methods(["SOAP"])
    assert "SOAP" not in deep_bench.methods()


@pytest.mark.parametrize("shape", [(5, 3), (3, 5)])
def test_muon_is_that_of_torch_up_to_the_precision_of_bfloat16(shape):
    generator = torch.Generator().manual_seed(0)
    start, g = (torch.randn(shape, generator=generator) for _ in range(2))
    ends = []
    for make in (torch.optim.Muon, deep_baselines.MuonAdamW):
        w = torch.nn.Parameter(start.clone())
        options = {"adjust_lr_fn": "match_rms_adamw"} if make is torch.optim.Muon else {}
        optimizer = make([w], lr=1.0, **options)
        w.grad = g.clone()
        optimizer.step()
        ends.append(w.detach() - 0.9 * start)  # weight decay is .1
    torch.testing.assert_close(ends[1], ends[0], rtol=0.05, atol=0.01)


def test_muon_trains_matrices_and_adamw_all_else():
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    both = deep_baselines.MuonAdamW(list(net.parameters()), lr=1e-3)
    assert [len(part.param_groups[0]["params"]) for part in both.parts] == [1, 3]


def test_every_rate_of_a_grid_is_a_method_of_its_own(tiny):
    jobs = list(deep_bench.jobs(Selection([tiny], [0], [ROTATED, COSINE])))
    assert [job.template.method for job in jobs] == [ROTATED, *(f"{COSINE}, {rate:g}" for rate in (1e-4, 1e-3, 1e-2))]


def test_with_defaults_alone_every_method_runs_once(tiny):
    chosen = Selection([tiny], [0], [ROTATED, ADAM, COSINE], as_they_come=[ROTATED, ADAM, COSINE])
    titles = [job.template.method for job in deep_bench.jobs(chosen)]
    assert titles == [ROTATED, f"{ADAM}, 0.001", f"{COSINE}, 0.001"]
    assert not list(deep_bench.beyond(chosen, []))


@pytest.mark.parametrize(("losses", "further"), [((3, 2, 1), 0.1), ((1, 2, 3), 1e-5), ((2, 1, 3), None)])
def test_where_an_edge_is_best_a_rate_further_is_tried(losses, further, tiny):
    chosen = Selection([tiny], [0, 1], [ADAM, NO_RATE])
    rows = [
        Row(deep_bench.EXPERIMENT, tiny, f"{ADAM}, {rate:g}", seed, 20, loss=loss)
        for rate, loss in zip((1e-4, 1e-3, 1e-2), losses)
        for seed in (0, 1)
    ]
    jobs = list(deep_bench.beyond(chosen, rows))
    assert [job.template.method for job in jobs] == ([f"{ADAM}, {further:g}"] * 2 if further else [])


def test_longer_runs_are_problems_of_their_own(tiny):
    names = deep_bench.names([tiny], lengths=(1, 4))
    assert names == [tiny, f"{tiny} ×4"]
    short, long = Selection(names).cells()
    assert long.budget == 4 * short.budget
    assert net_problem(f"{tiny} ×4").steps == 4 * net_problem(tiny).steps


def test_sets_of_problems_are_chosen_by_name():
    assert deep_bench.names(sets=["final"]) == list(SETS["final"])
    assert set(deep_bench.names()) == {name for title in SETS if title not in SLOW for name in SETS[title]}
    with pytest.raises(ValueError, match=r"--set: expected one of development; .*final; fresh; got last"):
        deep_bench.names(sets=["last"])


def test_what_was_not_chosen_is_what_is_usual():
    quick = deep_bench.selection("", (), (), (), (1,), quick=True)
    assert (quick.problems, quick.steps) == (list(deep_bench.QUICK), 100)
    large = deep_bench.selection("large", (), (), (), (1,), quick=False)._replace(seeds=[0])
    at_default = {MUON} if METHODS[SOAP].missing else {MUON, SOAP}  # of another package
    titles = [job.template.method for job in deep_bench.jobs(large)]
    assert all(titles.count(f"{method}, {METHODS[method].default:g}") == 1 for method in at_default)
    assert {title.partition(", 0")[0] for title in titles} == {ROTATED, COSINE, *at_default}
    given = deep_bench.selection("starts", ["mnist-mlp"], ["final"], [ADAM], (2,), quick=False)
    assert given.methods == [ADAM]
    assert given.problems[0] == "mnist-mlp ×2"
    assert len(given.problems) == 1 + len(SETS["final"])


def test_the_peers_that_practitioners_use_have_three_rates_a_decade_apart():
    for method in COMPARED:
        if not method.startswith("infhess"):
            low, default, high = METHODS[method].tried()
            assert default == METHODS[method].default
            assert (high / default, default / low) == pytest.approx((10, 10))


def test_rows_at_the_end_have_the_accuracy_and_the_clock_on_the_wall():
    rows = curve(small(), METHODS[ADAM].make(1e-2), Row("e", "p", "m", 3, 20), 100 * 20, ("",))
    (accuracy,) = (row for row in rows if row.method == f"m{ACCURACY}")
    (wall,) = (row for row in rows if row.method == f"m{WALL}")
    assert 0.9 < accuracy.loss <= 1
    assert 0.8 < accuracy.metric <= 1
    assert wall.loss > 0
    points = [row.data_points for row in rows if row.method == "m"]
    assert max(b - a for a, b in pairwise(points)) <= 100 * 20 / 8 + 20  # so many rows at least


@pytest.mark.parametrize("attention", [False, True])
def test_sophia_is_charged_for_its_products(attention):
    if METHODS["Sophia"].missing:
        pytest.skip("pytorch_optimizer is not installed")
    problem = replace(small(), net=NETS["transformer"], read=lambda: labelled(0.0)) if attention else small()
    rows = curve(problem, METHODS["Sophia"].make(0.06), Row("e", "p", "m", 3, 20), 100 * 20, ("",))
    end = rows[-1]
    assert end.products == math.ceil(end.data_points / 20 / 10)


@pytest.mark.parametrize(
    ("title", "seed", "problem", "chosen"),
    [
        (ROTATED, 7, "mnist-mlp", True),
        (ROTATED + ACCURACY, 7, "mnist-mlp", True),
        (ROTATED + ACCURACY, 8, "mnist-mlp", False),
        (ROTATED, 7, "mnist-cnn", False),
        (NO_RATE, 7, "mnist-mlp", False),
        (f"{COSINE}, 0.1" + WALL, 7, "mnist-mlp", True),
        (f"{MUON}, 0.1", 7, "mnist-mlp", False),
    ],
)
def test_rows_of_what_is_run_again_are_those_of_its_problems_seeds_and_methods(title, seed, problem, chosen):
    selection = Selection(["mnist-mlp"], [7], [ROTATED, COSINE])
    assert deep_bench.chosen_rows(selection, Row("e", problem, title, seed)) is chosen
