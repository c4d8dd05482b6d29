"""The paper's experiments as commands: cut off, resumed, reported; missing data are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from bench_cases import needs_data
from commands import read, start


def cut_off(process, folder, how, jobs):
    """End the command once some jobs are finished; its workers have to end too."""
    finished = 0
    for line in process.stdout:
        finished += line.startswith("[")
        if finished == jobs:
            break
    process.send_signal(how)
    process.communicate()
    while subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).returncode == 0:
        time.sleep(0.1)  # a worker that is left behind keeps the test here, until pytest's own limit
    return read(folder / "rows.csv")


@pytest.mark.long
@needs_data
def test_logistic_survives_ctrl_c_and_kill_and_reports(tmp_path):
    arguments = ("logistic", "--quick", "--out", "r")
    seen = cut_off(start(tmp_path, *arguments), tmp_path / "r", signal.SIGKILL, 3)
    later = cut_off(start(tmp_path, *arguments), tmp_path / "r", signal.SIGINT, 3)
    assert later[: len(seen)] == seen
    done = start(tmp_path, *arguments)
    out, error = done.communicate()
    assert done.returncode == 0, error
    rows = read(tmp_path / "r/rows.csv")
    assert rows[: len(later)] == later
    assert len({(r["method"], r["seed"], r["data_points"]) for r in rows}) == len(rows)
    assert "holds" in out
    for name in ("report.html", "claims.md", "logistic.svg"):
        assert (tmp_path / "r" / name).stat().st_size > 1000


@pytest.mark.long
@needs_data
def test_deep_in_small_and_a_question_that_makes_no_sense(tmp_path):
    done = start(tmp_path, "deep", "--quick", "--out", "d")
    out, error = done.communicate()
    assert done.returncode == 0, error
    assert "one trajectory" in " ".join(out.split())
    assert {r["problem"] for r in read(tmp_path / "d/rows.csv")} == {"default", "xavier"}
    assert not (tmp_path / "d/unfinished").exists()
    both = start(tmp_path, "deep", "--quick", "--full")
    assert "one of --quick and --full" in both.communicate()[1]
    assert both.returncode == 2


def test_data_that_is_missing_is_named_with_the_remedy(tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "INFHESS_DATA"} | {
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    (tmp_path / "nowhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "infhess", "reproduce", "regression", "--quick", "--workers", "1", "--data-dir", "nowhere"],
        cwd=tmp_path, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "infhess data get sarcos" in " ".join(done.stderr.split())
