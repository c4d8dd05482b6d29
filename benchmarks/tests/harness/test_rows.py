"""Rows on disk."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from infhess._rules import RULES
from infhess.cli.rows import Row, RowFile

ROOT = Path(__file__).resolve().parents[3]


def test_rows_survive_a_failure_while_writing(tmp_path):
    file = RowFile(tmp_path)
    file.add([Row("e", "p", "m", metric=1.0)])

    def broken():
        yield Row("e", "p", "n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        file.add(broken())
    assert [r.method for r in RowFile(tmp_path).rows] == ["m"]
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_dropped_rows_leave_the_file_with_the_next_job(tmp_path):
    RowFile(tmp_path).add([Row("e", "p", method) for method in "ab"])
    file = RowFile(tmp_path)
    file.drop(lambda row: row.method == "a")
    assert [r.method for r in RowFile(tmp_path).rows] == ["a", "b"]
    file.add([Row("e", "p", "c")])
    assert [r.method for r in RowFile(tmp_path).rows] == ["b", "c"]


def test_rows_name_the_rule_that_computed_them_and_its_version(tmp_path):
    theirs, mine = (
        Row("bench-deep", "p", "Adam, 0.1"),
        Row("bench-deep", "p", "infhess, no learning rate, rotated: rate"),
    )
    RowFile(tmp_path).add([theirs, mine, replace(mine, rule="rate-free 2")])
    assert [row.rule for row in RowFile(tmp_path).rows] == ["", f"rate-free {RULES['rate-free']}", "rate-free 2"]


def test_rows_from_before_rules_had_versions_count_as_older_also_when_others_are_added(tmp_path):
    columns = "experiment,problem,method,seed,batch_size,data_points,products,seconds,loss,metric,version"
    rows = [
        f"bench-deep,p,{method},0,1,2,3,0.5,0.25,nan,{v}"
        for method in ('"infhess, online sgd"', "sgd")
        for v in ("0.1.0", "0.2.0")
    ]
    (tmp_path / "rows.csv").write_text("\n".join([columns, *rows, ""]))
    before = RowFile(tmp_path).rows
    assert [(row.loss, row.version, row.rule) for row in before] == [
        (0.25, "0.1.0", "nets older"), (0.25, "0.2.0", "nets 1"), (0.25, "0.1.0", ""), (0.25, "0.2.0", ""),
    ]  # fmt: skip
    RowFile(tmp_path).add([Row("bench-deep", "p", "infhess, online Adam")])
    assert [row.rule for row in RowFile(tmp_path).rows] == [*(row.rule for row in before), f"nets {RULES['nets']}"]


@pytest.mark.parametrize("path", sorted(ROOT.glob("benchmarks/results/*/rows.csv")), ids=lambda path: path.parent.name)
def test_every_committed_row_of_infhess_has_a_rule(path):
    """A method of infhess says so in its name; where it does not, its experiment is known."""
    rows = RowFile(path.parent).rows
    assert not {row.method for row in rows if row.method.startswith("infhess") and not row.rule}
    assert {row.rule.rpartition(" ")[0] for row in rows if row.rule} <= RULES.keys()


def test_the_status_of_results_names_older_rules_and_the_pages_that_quote_them(tmp_path):
    status = runpy.run_path(str(ROOT / "tools" / "results_status.py"))["status"]
    now, mine = f"rate-free {RULES['rate-free']}", Row("bench-deep", "p", "infhess, no learning rate")
    RowFile(tmp_path / "benchmarks/results/old").add(
        [replace(mine, rule="rate-free 2"), Row("bench-deep", "p", "Adam")]
    )
    RowFile(tmp_path / "benchmarks/results/new").add([mine])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(
        "![](../benchmarks/results/old/a.svg) ![](../benchmarks/results/new/a.svg)"
    )
    assert list(status(tmp_path)) == [
        "benchmarks/results/new: of present rules",
        f"    {now}: 1 rows",
        "benchmarks/results/old: of an older rule",
        f"    rate-free 2, now {RULES['rate-free']}: 1 rows",
        "    quoted in docs/page.md",
    ]
