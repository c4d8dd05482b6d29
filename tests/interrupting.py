"""Commands that are interrupted: by SIGINT to their own process, or to the group, as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial

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
