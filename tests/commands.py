"""The commands as a person runs them."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from infhess.cli.app import app


def run(*arguments, cwd, status=0):
    done = subprocess.run([sys.executable, "-m", "infhess", *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def run_here(*arguments, status=0):
    """The same in this process, in its folder: what the command says."""
    done = CliRunner().invoke(app, arguments, prog_name="infhess")
    assert done.exit_code == status, done.output
    return done.output


def read(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "infhess", "reproduce", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
