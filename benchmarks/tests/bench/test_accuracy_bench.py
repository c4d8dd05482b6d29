"""The accuracy bench: what is counted, who converges, and the report of it in small."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from bench_cases import small
from infhess_bench.bench import accuracy_baselines, accuracy_bench, recorder
from infhess_bench.bench.accuracy_baselines import infhess, solvers
from infhess_bench.bench.recorder import MINIMIZE, EnoughError, Recorder
from infhess_bench.harness import EXACT, START, Row
from infhess_bench.problems.convex_problems import ConvexProblem, huber, logistic, poisson, softmax, squares
from infhess_bench.problems.unseen_problems import UNSEEN

PROBLEM = small(logistic, l2=1e-2)
ENDS = PROBLEM.value(PROBLEM.solved()), PROBLEM.value(PROBLEM.model())


class Counted:
    """Tensors of data that count the rows read from them."""

    def __init__(self, problem):
        self.read = 0
        loss_of = problem.loss_of

        def counted(outputs, y):
            self.read += len(y)
            return loss_of(outputs, y)

        self.problem = replace(problem, loss_of=counted)


def rows_of(solver, problem=PROBLEM, ends=ENDS):
    record = Recorder(problem, Row("e", "p", MINIMIZE, 0, 32), *ends)
    with suppress(EnoughError):
        solver(problem, record)
    return record


@pytest.mark.parametrize("name", [*solvers(PROBLEM), MINIMIZE])
def test_every_method_descends_and_second_order_arrives(name, monkeypatch):
    monkeypatch.setattr(recorder, "PASSES", 60)
    record = rows_of(infhess if name == MINIMIZE else solvers(PROBLEM)[name])
    gaps = [(r.loss - ENDS[0]) / (ENDS[1] - ENDS[0]) for r in record.rows]
    slow = "Adam" in name or "Sketchy" in name  # two steps a pass, on 300 points
    assert min(gaps) < (0.5 if slow else 1e-8 if "ewton" in name or name == MINIMIZE else 1e-2)
    assert [r.data_points for r in record.rows] == sorted(r.data_points for r in record.rows)
    assert all(r.metric >= r.data_points / 300 for r in record.rows)


def test_gradients_are_counted_to_the_point(monkeypatch):
    monkeypatch.setattr(recorder, "PASSES", 8)
    for name in ("torch L-BFGS", "SciPy L-BFGS-B"):
        counted = Counted(PROBLEM)
        record = rows_of(accuracy_baselines.GENERAL[name], counted.problem)
        assert counted.read == record.points


def test_solvers_are_those_that_apply():
    assert "scikit-learn newton-cholesky" in solvers(PROBLEM)
    assert not [name for name in solvers(small(poisson)) if "scikit" in name]
    assert not [name for name in solvers(small(huber)) if "scikit" in name]
    assert {n for n in solvers(small(squares)) if "scikit" in n} == {"scikit-learn saga", "scikit-learn sag"}
    assert "scikit-learn lbfgs" in solvers(small(softmax, 4))


def test_the_report_in_small(tmp_path):
    def row(problem, method, passes, loss, batch=0, work=0.0, seconds=1.0):
        return Row(
            accuracy_bench.EXPERIMENT, problem, method, 100, batch, passes * 10, 0, seconds, loss, work or passes
        )

    rows = [row("p", EXACT, 1, 0.0, work=50), row("p", START, 0, 1.0, work=50)]
    rows += [row("p", MINIMIZE, 5, 1e-9, b, 20, 2.0) for b in (32, 256)]
    rows += [row("p", "torch L-BFGS", 30, 1e-9, seconds=4.0), row("p", "SciPy L-BFGS-B", 40, 1e-4)]
    axes = accuracy_bench.Axes(rows)
    assert axes.to("passes", "p", MINIMIZE, 32, 1e-8) == 5
    assert axes.to("passes", "p", "SciPy L-BFGS-B", 0, 1e-8) == math.inf
    assert math.isnan(axes.to("passes", "p", "SciPy trust-ncg, infhess products", 0, 1e-8))
    text = accuracy_bench.report(rows, tmp_path, [100])
    assert "| p, 32 | 5 | 20 | 2 | 30 (torch L-BFGS) | 4 (torch L-BFGS) |" in text
    assert "| p, 32: passes / best first-order's | 0.167 | ≤ 0.333333 | yes |" in text
    assert {p.name for p in tmp_path.iterdir()} >= {
        "summary.md",
        "targets.md",
        "table.md",
        "report.html",
        "accuracy.svg",
    }


def test_where_nobody_else_arrives_it_is_what_the_nearest_had_spent():
    def row(method, passes, loss):
        return Row(accuracy_bench.EXPERIMENT, "p", method, 100, 0, passes * 10, 0, 1.0, loss, 1.0)

    rows = [row(EXACT, 1, 0.0), row(START, 0, 1.0), row("torch L-BFGS", 40, 1e-5), row("SciPy L-BFGS-B", 9, 1e-2)]
    passes, word = accuracy_bench.Axes(rows).least("passes", "p", ["torch L-BFGS", "SciPy L-BFGS-B", "saga"], 1e-8)
    assert (passes, word) == (40, ", which torch L-BFGS had spent at 1e-05")


def test_a_run_that_wrote_nothing_is_lost():
    assert accuracy_bench.thinned([]) == []
    rows = [Row("e", "p", "m", data_points=i, loss=1 / (i + 1)) for i in range(2000)]
    thin = accuracy_bench.thinned(rows)
    assert thin[0] == rows[0]
    assert thin[-1] == rows[-1]
    assert len(thin) < 500


@pytest.mark.parametrize("name", ["counts", "badly-scaled"])
def test_problems_that_were_named_before(name):
    problem = UNSEEN[name]()
    assert isinstance(problem, ConvexProblem)
    W = problem.model().weight
    (g,) = torch.autograd.grad(problem.loss(model := problem.model())(problem.data), model.parameters())
    assert g.shape == W.shape
    if name == "badly-scaled":
        values = torch.linalg.eigvalsh(problem.data[0].mT @ problem.data[0] / len(problem.data[0]))
        assert float(values[-1] / values[0]) == pytest.approx(1e10, rel=0.5)
