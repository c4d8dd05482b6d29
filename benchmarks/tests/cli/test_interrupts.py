"""Ctrl-C, and SIGINT to the command's own process alone: jobs end at once with one sentence, and go on where they stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from commands import read
from infhess.__main__ import INTERRUPTED
from interrupting import LONG, STATUS, interrupted, start, until

SCRIPT = Path(__file__).parents[1] / "slow_command.py"


@pytest.mark.parametrize(("workers", "whole_group"), [(1, False), (2, False), (2, True)])
def test_jobs_that_run_are_ended_and_finished_rows_are_kept(tmp_path, workers, whole_group):
    first = start(SCRIPT, "slow", tmp_path, workers, cwd=tmp_path)
    until(first, lambda: len(list(tmp_path.glob("begun-*"))) == workers)
    assert interrupted(first, whole_group) == INTERRUPTED
    assert first.returncode in STATUS
    assert {r["seed"] for r in read(tmp_path / "rows.csv")} == {"0", "1"}
    (tmp_path / "go").touch()
    second = start(SCRIPT, "slow", tmp_path, workers, cwd=tmp_path)
    out, error = second.communicate(timeout=LONG)
    assert second.returncode == 0, error
    assert out.splitlines()[0].startswith("[1/4]")
    assert sorted(r["seed"] for r in read(tmp_path / "rows.csv")) == list("012345")


@pytest.mark.parametrize("whole_group", [False, True], ids=["alone", "group"])
def test_workers_that_still_import_are_ended_and_say_nothing(tmp_path, whole_group):
    process = start(SCRIPT, "slow", tmp_path, 2, cwd=tmp_path)

    def workers():
        found = subprocess.run(["pgrep", "-g", str(process.pid), "-f", "spawn_main"], capture_output=True, text=True)
        return found.stdout.split()

    until(process, lambda: len(workers()) == 2)
    assert interrupted(process, whole_group) == INTERRUPTED
    assert process.returncode in STATUS
