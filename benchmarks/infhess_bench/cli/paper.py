"""`infhess reproduce`: the experiments of the paper."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from infhess.cli.options import Fresh, flag
from infhess.cli.usage import remedies
from infhess_bench.cli.options import DataDir, FirstSeed, Folder, Seeds, Workers


class Experiment(str, Enum):
    """The experiments of the paper."""

    regression = "regression"
    logistic = "logistic"
    deep = "deep"


def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="Which one.")],
    out: Folder = None,
    seed: FirstSeed = 0,
    seeds: Seeds = None,
    quick: Annotated[bool, flag("quick", "A small version: two minutes at the most.")] = False,
    full: Annotated[bool, flag("full", "The paper's size: hours, for nets on a GPU.")] = False,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """The paper's experiments on the real data: rows, figures, and a report that says claim by claim what was found.

    Example: `infhess reproduce regression --seeds 5 --data-dir data`
    """
    with remedies():
        from infhess.cli.rows import RowFile
        from infhess_bench.cli import show
        from infhess_bench.data import use
        from infhess_bench.experiments import reproduce as paper

        if quick and full:
            raise ValueError("expected one of --quick and --full")
        use(data_dir)
        folder = out or Path(f"runs/reproduce-{experiment.value}")
        file = RowFile(folder, fresh=fresh)
        plan = paper.plan(experiment.value, "quick" if quick else "full" if full else "default", seed, seeds)
        for jobs in plan.stages(file):
            show.run(jobs, file, workers)
        report = plan.report(file, folder)
        show.claims(report.claims)
        typer.echo(f"\nrows: {file.path}\nreport: {folder / 'report.html'}")
