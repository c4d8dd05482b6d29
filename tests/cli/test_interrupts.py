"""Ctrl-C while a command starts: it ends at once with one sentence."""

from __future__ import annotations

import pytest

from infhess.__main__ import INTERRUPTED
from interrupting import STATUS, interrupted, start


@pytest.mark.parametrize("module", ["typer", "infhess.cli.options", "infhess.cli.app", "torch._C", "torch"])
def test_there_is_no_traceback_while_modules_are_imported(tmp_path, module):
    """Python says which modules it has imported; the signal comes right after one of them."""
    process = start("-X", "importtime", "-m", "infhess", "spectrum", "infhess.example:small_net", cwd=tmp_path)
    for line in process.stderr:
        if line.rsplit("|")[-1].strip() == module:
            break
    said = [line for line in interrupted(process, False).splitlines() if not line.startswith("import time:")]
    assert said == INTERRUPTED.splitlines()
    assert process.returncode in STATUS
