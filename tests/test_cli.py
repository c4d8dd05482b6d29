"""The commands as a person runs them: real processes, real files."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest

from infhess.experiments.rows import COLUMNS, Row, RowFile


def run(*arguments, cwd, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "infhess", *arguments], cwd=cwd, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def read(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_demo_writes_rows_and_a_figure_and_does_not_compute_twice(tmp_path):
    first = run("demo", cwd=tmp_path)
    assert "preconditioned sgd" in first.stdout
    rows = read(tmp_path / "runs/demo/rows.csv")
    assert list(rows[0]) == COLUMNS
    assert (tmp_path / "runs/demo/demo.png").read_bytes().startswith(b"\x89PNG")
    gaps = {method: float(loss) for method, loss in ((r["method"], r["loss"]) for r in rows)}  # the last of each
    assert gaps["preconditioned sgd, no rate"] < 1e-3
    to_a_thousandth = {
        method: min(
            (int(r["data_points"]) for r in rows if r["method"] == method and float(r["loss"]) < 1e-3), default=10**9
        )
        for method in gaps
    }
    assert min(to_a_thousandth, key=to_a_thousandth.get) == "preconditioned sgd, no rate"
    run("demo", cwd=tmp_path)
    assert read(tmp_path / "runs/demo/rows.csv") == rows
    run("demo", "--fresh", cwd=tmp_path)
    assert read(tmp_path / "runs/demo/rows.1.csv") == rows
    again = read(tmp_path / "runs/demo/rows.csv")
    assert [r["metric"] for r in again] == [r["metric"] for r in rows]


def test_bench_deep_measures_the_cost_or_something_else(tmp_path):
    out = run("bench", "deep", "--cost", "--quick", "--out", "c", cwd=tmp_path)
    assert "step at rank 2 / gradient" in out.stdout
    rows = read(tmp_path / "c/rows.csv")
    assert all(float(r["metric"]) > 0 for r in rows)
    assert {r["products"] for r in rows if r["method"].startswith("update")} == {"15"}
    assert "at most one of" in run("bench", "deep", "--cost", "--tune", cwd=tmp_path, status=2).stderr


def test_bench_inference_measures_and_resumes(tmp_path):
    out = run("bench", "inference", "--quick", "--out", "b", cwd=tmp_path)
    assert "times faster" in out.stdout
    rows = read(tmp_path / "b/rows.csv")
    assert all(math.isfinite(float(r["metric"])) and float(r["metric"]) > 0 for r in rows)
    assert (tmp_path / "b/summary.md").read_text().startswith("| what | measured |")
    run("bench", "inference", "--quick", "--out", "b", cwd=tmp_path)
    assert read(tmp_path / "b/rows.csv") == rows


@pytest.mark.parametrize(
    "command", [["--help"], ["demo", "--help"], ["bench", "--help"], ["bench", "inference", "--help"]]
)
def test_help(command, tmp_path):
    text = run(*command, cwd=tmp_path).stdout
    assert "Usage" in text
    assert len(command) < 2 or command[0] == "bench" or "Example" in text


def test_version(tmp_path):
    from infhess import __version__

    assert run("--version", cwd=tmp_path).stdout.strip() == __version__


def test_bad_input_ends_with_status_2_and_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    error = run("demo", "--out", "file", cwd=tmp_path, status=2).stderr
    assert error.startswith("infhess: ")
    assert "Traceback" not in error
    (tmp_path / "other").mkdir()
    (tmp_path / "other/rows.csv").write_text("a,b\n1,2\n")
    assert "choose another --out" in run("demo", "--out", "other", cwd=tmp_path, status=2).stderr
    assert (tmp_path / "other/rows.csv").read_text() == "a,b\n1,2\n"
    run("demo", "--seed", "-1", cwd=tmp_path, status=2)
    run("paint", cwd=tmp_path, status=2)


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
