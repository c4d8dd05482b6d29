"""The demo: what its tables and its figure say is read off its rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infhess.cli.rows import Row, RowFile
from infhess_bench.experiments import demo, plots
from infhess_bench.problems.shuffled import seeded

DOCS = Path(__file__).parents[2] / "docs" / "demo"


@pytest.fixture(scope="module")
def rows():
    return RowFile(DOCS).rows


def test_the_tables_in_the_documents_are_of_the_rows_beside_them(rows, tmp_path):
    assert demo.summary(rows, tmp_path / "s.md").read_text() == (DOCS / "summary.md").read_text()


def test_the_figure_has_three_panels_and_names_what_is_drawn(rows, tmp_path):
    text = demo.figure(rows, tmp_path / "f.svg").read_text(encoding="utf-8")
    assert text.count('<g id="axes_') == 3
    for words in (demo.INFHESS, "the best of 9", "the best of 5", "95 % interval", "exact"):
        assert words in text


def test_headlines_say_who_is_ahead(rows):
    last = {row.method: row.loss for row in rows if row.problem == demo.CONVEX and not row.method.endswith(demo.BESIDE)}
    factor = min(loss for method, loss in last.items() if method != demo.INFHESS) / last[demo.INFHESS]
    convex, net, sharpness = demo.headlines(rows)
    assert convex.startswith(f"Convex: {factor:.3g} times closer")
    assert net.startswith("Net: a lower loss")
    assert sharpness.startswith("Sharpness: 5 of 5")
    behind = [replace(r, loss=9.0) if (r.problem, r.method) == (demo.NET, demo.INFHESS) else r for r in rows]
    missed = [replace(r, metric=0.0) if r.method == "high" else r for r in rows]
    assert demo.headlines(behind)[1].startswith("Net: no lower loss")
    assert demo.headlines(missed)[2].startswith("Sharpness: 0 of 5")


def test_what_is_told_of_curves():
    def row(method, points, loss):
        return Row("demo", demo.CONVEX, method, data_points=points, loss=loss)

    curves = {
        "sgd, rate 1": [row("sgd, rate 1", 10, 0.05), row("sgd, rate 1", 40, 0.02)],
        "sgd, rate 2": [row("sgd, rate 2", 5, 0.5), row("sgd, rate 2", 30, 0.009)],
        demo.INFHESS: [row(demo.INFHESS, 20, 0.0005)],
    }
    assert demo.best(curves) == "sgd, rate 2"
    assert demo.reached([curves["sgd, rate 1"], curves["sgd, rate 2"]]) == [10, 30, None]
    _, lines, seen = demo._convex_table(curves)
    assert lines[1][1:4] == ["10", "30", "never"]
    assert "after 20 data points" in seen
    assert "not at all" in seen


def test_a_package_that_is_missing_is_named_with_its_extra():
    with pytest.raises(
        ValueError, match=r"needs no_such_package; install it with: pip install 'infhess\[experiments\]'"
    ):
        plots.require("matplotlib", "no_such_package")


def test_exact_eigenvalues_sum_to_the_trace():
    problem = demo.net_problem()
    with seeded(0):
        model = problem.model()
    source = demo.Hessian(problem.loss(model), model.parameters(), [tuple(t[:64] for t in problem.data)])
    values = demo.eigenvalues(source)
    diagonal = sum(float(source.matvec(unit)[i]) for i, unit in enumerate(demo.torch.eye(source.size)))
    assert float(values.sum()) == pytest.approx(diagonal, rel=1e-3)
    assert (values[:-1] >= values[1:]).all()
