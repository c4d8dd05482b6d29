"""The demo: what its tables and its figure say is read off its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infhess import Hessian, Preconditioned
from infhess.cli import demo, demo_report, plots
from infhess.cli.rows import Row, RowFile
from infhess.cli.shuffled import seeded

DOCS = Path(__file__).parents[2] / "docs" / "demo"


@pytest.fixture(scope="module")
def rows():
    return RowFile(DOCS).rows


def test_the_tables_in_the_documents_are_of_the_rows_beside_them(rows, tmp_path):
    assert demo_report.summary(rows, tmp_path / "s.md").read_text() == (DOCS / "summary.md").read_text()


def test_the_figure_has_three_panels_and_names_what_is_drawn(rows, tmp_path):
    text = demo_report.figure(rows, tmp_path / "f.svg").read_text(encoding="utf-8")
    assert text.count('<g id="axes_') == 3
    for words in (demo.INFHESS, "the best of 9", "the best of 5", "95 % interval", "exact"):
        assert words in text


def test_headlines_say_who_is_ahead(rows):
    last = {row.method: row.loss for row in rows if row.problem == demo.CONVEX and ": " not in row.method}
    factor = min(loss for method, loss in last.items() if method != demo.INFHESS) / last[demo.INFHESS]
    convex, net, sharpness = demo_report.headlines(rows)
    assert convex.startswith(f"Convex: {factor:.3g} times closer")
    assert net.startswith("Net: a lower loss")
    assert sharpness.startswith("Sharpness: 5 of 5")
    behind = [replace(r, loss=9.0) if (r.problem, r.method) == (demo.NET, demo.INFHESS) else r for r in rows]
    missed = [replace(r, metric=0.0) if r.method == "high" else r for r in rows]
    assert demo_report.headlines(behind)[1].startswith("Net: no lower loss")
    assert demo_report.headlines(missed)[2].startswith("Sharpness: 0 of 5")


def test_what_is_told_of_curves():
    def row(method, points, loss):
        return Row("demo", demo.CONVEX, method, data_points=points, loss=loss)

    curves = {
        "sgd, rate 1": [row("sgd, rate 1", 10, 0.05), row("sgd, rate 1", 40, 0.02)],
        "sgd, rate 2": [row("sgd, rate 2", 5, 0.5), row("sgd, rate 2", 30, 0.009)],
        demo.INFHESS: [row(demo.INFHESS, 20, 0.0005)],
    }
    assert demo_report.best(curves) == "sgd, rate 2"
    assert demo_report.reached([curves["sgd, rate 1"], curves["sgd, rate 2"]]) == [10, 30, None]
    _, lines, seen = demo_report._convex_table(curves)
    assert lines[1][1:4] == ["10", "30", "never"]
    assert "after 20 data points" in seen
    assert "not at all" in seen


def test_a_package_that_is_missing_is_named_with_its_extra():
    with pytest.raises(ValueError, match=r"needs no_such_package; install it with: pip install 'infhess\[demo\]'"):
        plots.require("matplotlib", "no_such_package")


def test_exact_eigenvalues_sum_to_the_trace():
    problem = demo.net_problem()
    with seeded(0):
        model = problem.model()
    source = Hessian(problem.loss(model), model.parameters(), [tuple(t[:64] for t in problem.data)])
    values = demo.eigenvalues(source)
    diagonal = sum(float(source.matvec(unit)[i]) for i, unit in enumerate(torch.eye(source.size)))
    assert float(values.sum()) == pytest.approx(diagonal, rel=1e-3)
    assert (values[:-1] >= values[1:]).all()


def test_the_solution_of_the_convex_problem_has_no_gradient():
    problem = demo.convex_problem()
    model = problem.solved()
    (g,) = torch.autograd.grad(problem.loss(model)(problem.data), list(model.parameters()))
    assert float(g.abs().max()) < 1e-12


@pytest.mark.parametrize("which", ["convex", "net"])
def test_a_run_reads_its_points_and_counts_its_products(which, monkeypatch):
    problem = demo.convex_problem() if which == "convex" else demo.net_problem()
    monkeypatch.setattr(type(problem), "points", 320)
    with seeded(0):
        sgd = demo.Run(problem, lambda p: torch.optim.SGD(p, lr=0.1), 0)
        mine = demo.Run(problem, lambda p: Preconditioned(torch.optim.SGD(p, lr=1.0)), 0)
        rows, probed = (list(demo.curve(run, problem, Row("e", "p", "m"), run.averaged)) for run in (sgd, mine))
    assert [r.data_points for r in rows][-1] == 320
    assert {r.products for r in rows} == {0}
    assert probed[-1].products > 0
    assert probed[-1].data_points + problem.price * 32 * probed[-1].products >= 320
    assert rows[-1].loss == pytest.approx(demo.value(problem, sgd.averaged(), tuple(t[:1000] for t in problem.data)))


def test_a_run_that_diverges_ends():
    problem = demo.convex_problem()
    run = demo.Run(problem, lambda p: torch.optim.SGD(p, lr=1e9), 0)
    rows = list(demo.curve(run, problem, Row("e", "p", "m"), run.averaged))
    assert rows[-1].data_points < problem.points
    assert rows[-1].loss > 100
