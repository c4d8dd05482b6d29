"""The committed rows give the committed tables: what a report says is computed from rows alone."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path

import pytest

from infhess.cli.rows import RowFile
from infhess_bench.bench import (
    any_rate,
    batch_sizes,
    convex_report,
    cost,
    coverage,
    curvature_bench,
    edge_of_stability,
    inference,
    large_nets,
    overhead,
    rule_variants,
    safety,
    tracked_products,
)
from infhess_bench.bench.convex_bench import Axes
from infhess_bench.experiments import page, reproduce
from infhess_bench.harness.tables import markdown, target_cells

ROOT = Path(__file__).parents[3]


def committed(path):
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("experiment", ["regression", "logistic", "deep"])
def test_claims_of_the_paper(experiment):
    plan = reproduce.plan(experiment, "default", 0, None)
    rows = plan.rows(RowFile(ROOT / "benchmarks/results" / f"paper-{experiment}"), *plan.seeds)
    assert page.claim_list(plan.reporting.claims(rows)) == committed(f"benchmarks/results/paper-{experiment}/claims.md")
    notes = plan.reporting.notes(plan.size, plan.seeds)
    assert all(note.endswith((".", "--full.")) and "{" not in note for note in notes)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("curvature-coverage", coverage),
        ("curvature-large", large_nets),
        ("curvature-tracker", tracked_products),
        ("deep-batches", batch_sizes),
        ("deep-cost", cost),
        ("deep-safety", safety),
        ("deep-decay", rule_variants),
        ("deep-variants", rule_variants),
        ("edge", edge_of_stability),
        ("inference", inference),
        ("overhead", overhead),
    ],
)
def test_summaries_of_the_bench(name, module):
    assert module.summary(RowFile(ROOT / "benchmarks/results" / name).rows) == committed(
        f"benchmarks/results/{name}/summary.md"
    )


def test_the_summary_of_eigenvalues(monkeypatch):
    monkeypatch.setattr(curvature_bench, "missing", dict)  # all were installed
    rows = RowFile(ROOT / "benchmarks/results/curvature").rows
    assert curvature_bench.summary(rows) == committed("benchmarks/results/curvature/summary.md")


def test_tables_of_convex_problems():
    rows = RowFile(ROOT / "benchmarks/results/convex").rows
    axes = Axes(rows)
    assert markdown(convex_report.ahead(axes, (1e-2, 1e-3))) == committed("benchmarks/results/convex/summary.md")
    assert markdown(target_cells(convex_report.targets(axes, rows))) == committed(
        "benchmarks/results/convex/targets.md"
    )


def test_tables_of_nets_from_any_rate():
    ends = any_rate.Ends(RowFile(ROOT / "benchmarks/results/deep-starts").rows, [100, 101, 102])
    for name, cells in (("starts", any_rate.from_any_rate(ends)), ("rank", any_rate.directions(ends))):
        assert markdown(cells) == committed(f"benchmarks/results/deep-starts/{name}.md")
    assert markdown(target_cells(any_rate.targets(ends))) == committed("benchmarks/results/deep-starts/targets.md")


def test_every_report_can_be_drawn_anew():
    known = runpy.run_path(str(ROOT / "tools" / "redraw.py"))["REPORTS"]
    assert {str(path.parent.relative_to(ROOT)) for path in REPORTS} <= set(known)
    assert all((ROOT / name / "rows.csv").is_file() for name in known)


REPORTS = sorted((ROOT / "benchmarks/results").glob("*/report.html"))


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.parent.name)
def test_reports_are_light_and_their_cells_short(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 500_000
    assert text.index("<nav") < text.index("<svg")
    assert all(len(html.unescape(cell)) <= 200 for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", text, flags=re.S))
    assert "infhess, online" not in text


def fresh_counts(what=""):
    """Of 16 runs, by the targets of the fresh problems."""
    shares = re.findall(
        rf"{what}[^|]*share of 16[^|]*\| ([\d.]+)", committed("benchmarks/results/deep-fresh/targets.md")
    )
    return [round(16 * float(share)) for share in shares]


def test_the_table_of_the_readme_is_that_of_the_fresh_problems():
    expected = [
        [str(n) for measure in ("objective", "test loss") for n in fresh_counts(f"{measure}: {what}")[:1]]
        for what in (
            "ahead of all peers at their defaults",
            "ahead of the best tuned peer,",
            "ahead of the best tuned peer or",
        )
    ]
    rows = re.findall(r"\| (?:every|the best|the same)[^|]*\| (\d+) \| (\d+) \|", committed("README.md"))
    assert [list(row) for row in rows] == expected


def test_counts_on_the_page_of_nets_are_those_of_its_targets():
    counts = set(fresh_counts())
    told = {int(n) for n in re.findall(r"(\d+) of 16", committed("docs/results/nets.md"))}
    assert told
    assert told <= counts | {16 - n for n in counts}
