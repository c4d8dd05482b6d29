"""The command line with one more command, as a script: jobs that wait for a file, in two processes or in one."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from infhess.__main__ import main
from infhess.harness.jobs import Job
from infhess.harness.rows import Row


def wait(template, folder):
    """The first two jobs are quick; the others have begun when they say so, and end once they may."""
    if template.seed >= 2:
        (folder / f"begun-{template.seed}").touch()
        while not (folder / "go").exists():
            time.sleep(0.05)
    return [template]


def slow(out: Path, workers: int):
    from infhess.cli import show
    from infhess.cli.usage import remedies
    from infhess.harness.rows import RowFile

    with remedies():
        jobs = [Job(Row("slow", "p", "m", seed), wait, (out,)) for seed in range(6)]
        show.run(jobs, RowFile(out), workers)


if __name__ == "__main__":
    if sys.argv[1] == "slow":
        from infhess.cli import app

        app.command()(slow)
    main()
