"""`infhess bench`: infhess and the alternatives in one run."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infhess.cli.bench_curvature import curvature
from infhess.cli.bench_nets import deep
from infhess.cli.options import DataDir, FirstSeed, Folder, Fresh, Out, Seed, Seeds, Workers, remedies, seed_range

if TYPE_CHECKING:
    from infhess.harness.jobs import Job
    from infhess.harness.rows import RowFile

bench = typer.Typer(no_args_is_help=True, help="Side by side with the alternatives, in one run.")
bench.command()(curvature)
bench.command()(deep)


def _in_turn(jobs: Iterable[Job], file: RowFile) -> None:
    """Run jobs that are timed one after the other; what is in the file does not run again."""
    from infhess.cli import show

    for job in jobs:
        if job.key not in file.done():
            with show.progress(job.title):
                file.add(job.run())


@bench.command()
def inference(
    out: Out = Path("runs/bench-inference"),
    seed: Seed = 0,
    fresh: Fresh = False,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes up to 1e5 only: seconds.")] = False,
) -> None:
    """Time and memory of the inference loop beside the bound of memory bandwidth and the paper's algorithm. Minutes.

    Example: `infhess bench inference --out runs/inference`
    """
    with remedies():
        from infhess.bench import inference as comparison
        from infhess.cli import show
        from infhess.harness.rows import RowFile
        from infhess.harness.tables import write

        file = RowFile(out, fresh=fresh, seed=seed)
        _in_turn(comparison.jobs(seed, quick=quick), file)
        show.inference(file.rows)
        summary = write(out / "summary.md", comparison.summary(file.rows))
        figure = comparison.figure(file.rows, out / "inference.svg")
        typer.echo(f"\nrows: {file.path}\nsummary: {summary}\nfigure: {figure}")


@bench.command()
def overhead(
    out: Out = Path("runs/bench-overhead"),
    seed: Seed = 0,
    fresh: Fresh = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small tensors only: seconds.")] = False,
) -> None:
    """Microseconds of `observe` and `step` beside SGD, Adam, schedule-free AdamW and SOAP, on one thread. Minutes.

    Example: `infhess bench overhead --out runs/overhead`
    """
    with remedies():
        from infhess.bench import overhead as comparison
        from infhess.harness.rows import RowFile
        from infhess.harness.tables import write

        file = RowFile(out, fresh=fresh, seed=seed)
        _in_turn(comparison.jobs(seed, width=0.02 if quick else 1.0), file)
        summary = write(out / "summary.md", text := comparison.summary(file.rows))
        typer.echo(f"{text}\nrows: {file.path}\nsummary: {summary}")


@bench.command()
def convex(
    out: Folder = None,
    seed: FirstSeed = 0,
    seeds: Seeds = 5,
    tune: Annotated[bool, typer.Option("--tune", help="Find the baselines' best settings, on another seed.")] = False,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="minimize to eight digits, beside solvers; timed one by one.")
    ] = False,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="Whether the bound on minimize's gap holds, over 200 runs.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few small problems that need no data, one seed.")] = False,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Convex problems: infhess and what users would pick instead, in data points read, in work and in seconds.

    Example: `infhess bench convex --seed 100 --data-dir data`

    Example: `infhess bench convex --accuracy --quick`
    """
    with remedies():
        from infhess.bench import convex_bench, convex_report
        from infhess.bench.convex_baselines import METHODS
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments import plots
        from infhess.harness.comparison import write_settings
        from infhess.harness.methods import missing
        from infhess.harness.rows import RowFile

        plots.require()
        use(data_dir)
        if accuracy + calibration + tune > 1:
            raise ValueError("expected at most one of --accuracy, --calibration and --tune")
        if calibration:
            return _calibration(out or Path("runs/bench-convex-calibration"), quick, fresh, workers)
        if accuracy:
            return _accuracy(out or Path("runs/bench-convex-accuracy"), seed_range(seed, seeds, quick), quick, fresh)
        show.not_installed(missing(METHODS))
        folder = out or Path("runs/bench-convex-tuning" if tune else "runs/bench-convex")
        file, budgets = RowFile(folder, fresh=fresh), convex_bench.QUICK if quick else convex_bench.BUDGETS
        if tune:
            show.run(list(convex_bench.tuning(budgets)), file, workers)
            settings = write_settings(convex_bench.best(file.rows), folder / "tuned.json")
            return typer.echo(f"rows: {file.path}\nsettings: {settings}")
        reported = seed_range(seed, seeds, quick)
        for jobs in (convex_bench.jobs, convex_bench.stability):
            show.run(list(jobs(reported, budgets)), file, workers)
        text = convex_report.report(file.rows, reported, folder)
        return typer.echo(f"{text}\nrows: {file.path}\nreport: {folder / 'report.html'}")


def _accuracy(folder: Path, seeds: list[int], quick: bool, fresh: bool) -> None:
    """minimize and solvers to eight digits, one after the other."""
    from infhess.bench import accuracy_bench as comparison
    from infhess.harness.rows import RowFile
    from infhess.harness.timing import on_threads

    file = RowFile(folder, fresh=fresh)
    names = comparison.QUICK if quick else (*comparison.KNOWN, *comparison.NEW)
    with on_threads(1):
        _in_turn(comparison.optima(names), file)
        for jobs, name in product((comparison.jobs, comparison.peers), names):  # a problem at a time is in memory
            _in_turn(jobs(file.rows, name, seeds), file)
    text = comparison.report(file.rows, folder, seeds)
    run = comparison.picture(folder / "run.svg", seeds[0], "digits" if quick else "mnist-3v5")
    typer.echo(f"{text}\nrows: {file.path}\none run: {run}\nreport: {folder / 'report.html'}")


def _calibration(folder: Path, quick: bool, fresh: bool, workers: int) -> None:
    """The bound on the gap beside the gap, over many runs."""
    from infhess.bench import convex_calibration
    from infhess.cli import show
    from infhess.harness.rows import RowFile

    file = RowFile(folder, fresh=fresh)
    show.run(list(convex_calibration.jobs(quick)), file, workers)
    typer.echo(f"{convex_calibration.report(file.rows, folder)}\nrows: {file.path}")
