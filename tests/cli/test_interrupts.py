"""Ctrl-C, and SIGINT to the command's own process alone: it ends at once with one sentence, and goes on where it stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from commands import read
from infhess.__main__ import INTERRUPTED

SCRIPT = Path(__file__).parents[1] / "slow_command.py"
# A shell says 130 for both: a program that ends by itself, and one that the signal ends.
STATUS = {130, -signal.SIGINT}
# An end that is waited for: jobs that nobody lets go on never end, and a busy machine needs time.
LONG = 900


def start(*arguments, cwd):
    # A shell that starts the tests in the background has them, and so their children, ignore SIGINT.
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=listening,
    )  # fmt: skip


def interrupted(process, whole_group):
    """What it says, once the command and all that it has started are gone."""
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=LONG)
    end = time.monotonic() + LONG
    while subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True).returncode == 0:
        assert time.monotonic() < end, "a worker is left behind"
        time.sleep(0.05)
    return error


def until(process, ready):
    """Wait for something that the command does."""
    end = time.monotonic() + LONG
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not get that far"
        time.sleep(0.02)


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


@pytest.mark.parametrize("module", ["typer", "infhess.cli.options", "infhess.cli", "torch._C", "torch"])
def test_there_is_no_traceback_while_modules_are_imported(tmp_path, module):
    """Python says which modules it has imported; the signal comes right after one of them."""
    process = start("-X", "importtime", "-m", "infhess", "spectrum", "infhess.problems.example:small_net", cwd=tmp_path)
    for line in process.stderr:
        if line.rsplit("|")[-1].strip() == module:
            break
    said = [line for line in interrupted(process, False).splitlines() if not line.startswith("import time:")]
    assert said == INTERRUPTED.splitlines()
    assert process.returncode in STATUS
