"""The commands as a person runs them: real processes, real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import read, run, run_here
from infhess import __version__
from infhess.experiments.demo import CONVEX, INFHESS
from infhess.harness.rows import COLUMNS, RowFile


def test_demo_writes_rows_and_a_figure_and_does_not_compute_twice(tmp_path, monkeypatch):
    first = run("demo", "--out", "runs/demo", cwd=tmp_path)
    assert "What to run next" in first.stdout
    rows = read(tmp_path / "runs/demo/rows.csv")
    assert list(rows[0]) == COLUMNS
    assert (tmp_path / "runs/demo/demo.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "runs/demo/demo.svg").stat().st_size < 150_000
    whole, rows = rows, [r for r in rows if r["problem"] == CONVEX]
    gaps = {method: float(loss) for method, loss in ((r["method"], r["loss"]) for r in rows)}  # the last of each
    assert gaps[INFHESS] < 1e-3
    to_a_thousandth = {
        method: min(
            (int(r["data_points"]) for r in rows if r["method"] == method and float(r["loss"]) < 1e-3), default=10**9
        )
        for method in gaps
    }
    assert min(to_a_thousandth, key=to_a_thousandth.get) == INFHESS
    monkeypatch.chdir(tmp_path)
    run_here("demo", "--out", "runs/demo")
    assert read(tmp_path / "runs/demo/rows.csv") == whole


def test_without_out_the_demo_shows_its_tables_and_a_figure_and_keeps_no_rows(tmp_path, monkeypatch):
    rows = RowFile(Path(__file__).parents[2] / "docs/demo").rows
    monkeypatch.setattr("infhess.experiments.demo.rows", lambda seed: iter(rows))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for _ in range(2):
        assert "What to run next" in run_here("demo")
    assert list((tmp_path / "here").iterdir()) == []
    assert [path.name for path in (tmp_path / "elsewhere").rglob("*.*")] == ["demo.png"] * 2
    assert "give --out as well" in run_here("demo", "--fresh", status=2)


@pytest.mark.long
def test_a_fresh_demo_keeps_earlier_rows_and_finds_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_here("demo", "--out", "runs/demo")
    rows = read(tmp_path / "runs/demo/rows.csv")
    run_here("demo", "--out", "runs/demo", "--fresh")
    assert read(tmp_path / "runs/demo/rows.1.csv") == rows
    again = read(tmp_path / "runs/demo/rows.csv")
    assert [r["metric"] for r in again] == [r["metric"] for r in rows]


@pytest.mark.parametrize(
    "command", ["", "demo", "reproduce", "spectrum", "bench", "bench inference", "bench convex", "data", "data list"]
)
def test_help(command):
    text = run_here(*command.split(), "--help")
    assert "Usage" in text
    assert "Example" in text


def test_version():
    assert run_here("--version").strip() == __version__


def test_bad_input_ends_with_status_2_and_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    error = run("demo", "--out", "file", cwd=tmp_path, status=2).stderr
    assert error.startswith("infhess: ")
    assert "Traceback" not in error
    (tmp_path / "other").mkdir()
    (tmp_path / "other/rows.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert "choose another --out" in run_here("demo", "--out", "other", status=2)
    assert "choose another --out" in run_here("demo", "--out", "file/demo", status=2)
    assert (tmp_path / "other/rows.csv").read_text() == "a,b\n1,2\n"
    run_here("demo", "--seed", "-1", status=2)
    run_here("paint", status=2)


WRONG = {
    ("nonsense",): "No such command 'nonsense'; see infhess --help",
    ("demo", "--seed", "a"): "see infhess demo --help",
    ("bench", "nonsense"): "see infhess bench --help",
    ("reproduce",): "regression, logistic, deep; see infhess reproduce --help",
}


@pytest.mark.parametrize(("arguments", "remedy"), WRONG.items(), ids=[" ".join(given) for given in WRONG])
def test_wrong_options_end_with_status_2_and_one_line(arguments, remedy):
    said = run_here(*arguments, status=2)
    assert remedy in said
    assert said.count("\n") == 1
