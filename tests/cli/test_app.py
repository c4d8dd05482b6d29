"""The commands as a person runs them: real processes, real files."""

from __future__ import annotations

import pytest

from commands import read, run
from infhess.experiments.rows import COLUMNS


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
