"""`infhess bench`: infhess and the alternatives in one run."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infhess.cli.options import Fresh, Seed, flag
from infhess.cli.usage import remedies
from infhess_bench.cli.bench_curvature import curvature
from infhess_bench.cli.bench_nets import deep
from infhess_bench.cli.options import DataDir, FirstSeed, Folder, Out, Seeds, Workers, one_kind, seed_range

if TYPE_CHECKING:
    from infhess.cli.rows import RowFile

bench = typer.Typer(
    no_args_is_help=True,
    help="Side by side with the alternatives, in one run.",
    epilog="Example: `infhess bench deep --quick`",
)
bench.command()(curvature)
bench.command()(deep)


@bench.command()
def inference(
    out: Out = Path("runs/bench-inference"),
    seed: Seed = 0,
    fresh: Fresh = False,
    quick: Annotated[bool, flag("quick", "Sizes up to 1e5 only: seconds.")] = False,
) -> None:
    """Time and memory of the inference loop beside the bound of memory bandwidth and the paper's algorithm. Minutes.

    Example: `infhess bench inference --out runs/inference`
    """
    with remedies():
        from infhess_bench.bench import inference as comparison
        from infhess_bench.cli import show
        from infhess_bench.harness import RowFile, write

        file = RowFile(out, fresh=fresh, seed=seed)
        show.run(list(comparison.jobs(seed, quick=quick)), file, 1)  # timed, one after the other
        show.inference(file.rows)
        summary = write(out / "summary.md", comparison.summary(file.rows))
        figure = comparison.figure(file.rows, out / "inference.svg")
        typer.echo(f"\nrows: {file.path}\nsummary: {summary}\nfigure: {figure}")


@bench.command()
def overhead(
    out: Out = Path("runs/bench-overhead"),
    seed: Seed = 0,
    fresh: Fresh = False,
    quick: Annotated[bool, flag("quick", "Small tensors only: seconds.")] = False,
) -> None:
    """Microseconds of `observe` and `step` beside SGD, Adam, schedule-free AdamW and SOAP, on one thread. Minutes.

    Example: `infhess bench overhead --out runs/overhead`
    """
    with remedies():
        from infhess.cli.rows import RowFile
        from infhess_bench.bench import overhead as comparison
        from infhess_bench.cli import show

        file = RowFile(out, fresh=fresh, seed=seed)
        show.run(list(comparison.jobs(seed, width=0.02 if quick else 1.0)), file, 1)
        show.summarised(file.path, comparison.summary(file.rows))


@bench.command()
def convex(
    out: Folder = None,
    seed: FirstSeed = 0,
    seeds: Seeds = 5,
    tune: Annotated[bool, flag("tune", "Find the baselines' best settings, on another seed.")] = False,
    accuracy: Annotated[bool, flag("accuracy", "minimize to eight digits, beside solvers; timed one by one.")] = False,
    calibration: Annotated[
        bool, flag("calibration", "Whether the bound on minimize's gap holds, over 200 runs.")
    ] = False,
    quick: Annotated[bool, flag("quick", "A few small problems that need no data, one seed.")] = False,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Convex problems: infhess and what users would pick instead, in data points read, in work and in seconds.

    Example: `infhess bench convex --seed 100 --data-dir data`

    Example: `infhess bench convex --accuracy --quick`
    """
    with remedies():
        from infhess_bench.bench import convex_bench, convex_calibration, convex_report
        from infhess_bench.bench.convex_baselines import METHODS
        from infhess_bench.cli import show
        from infhess_bench.data import use
        from infhess_bench.harness import RowFile, missing, write_settings

        use(data_dir)
        kind = one_kind({"accuracy": accuracy, "calibration": calibration, "tune": tune})
        name = "tuning" if tune else kind
        folder = out or Path(f"runs/bench-convex-{name}" if name else "runs/bench-convex")
        reported = seed_range(seed, seeds, quick)
        file, budgets = RowFile(folder, fresh=fresh), convex_bench.QUICK if quick else convex_bench.BUDGETS
        if calibration:
            show.run(list(convex_calibration.jobs(quick)), file, workers)
            return typer.echo(f"{convex_calibration.report(file.rows, folder)}\nrows: {file.path}")
        if accuracy:
            return _accuracy(file, folder, reported, quick)
        show.not_installed(missing(METHODS))
        if tune:
            show.run(list(convex_bench.tuning(budgets)), file, workers)
            settings = write_settings(convex_bench.best(file.rows), folder / "tuned.json")
            return typer.echo(f"rows: {file.path}\nsettings: {settings}")
        for jobs in (convex_bench.jobs, convex_bench.stability):
            show.run(list(jobs(reported, budgets)), file, workers)
        text = convex_report.report(file.rows, reported, folder)
        return typer.echo(f"{text}\nrows: {file.path}\nreport: {folder / 'report.html'}")


def _accuracy(file: RowFile, folder: Path, seeds: list[int], quick: bool) -> None:
    """minimize and solvers to eight digits, one after the other."""
    from infhess_bench.bench import accuracy_bench as comparison
    from infhess_bench.cli import show
    from infhess_bench.harness.timing import on_threads

    names = comparison.QUICK if quick else (*comparison.KNOWN, *comparison.NEW)
    with on_threads(1):
        show.run(list(comparison.optima(names)), file, 1)
        for jobs, name in product((comparison.jobs, comparison.peers), names):  # a problem at a time is in memory
            show.run(list(jobs(file.rows, name, seeds)), file, 1)
    text = comparison.report(file.rows, folder, seeds)
    run = comparison.picture(folder / "run.svg", seeds[0], "digits" if quick else "mnist-3v5")
    typer.echo(f"{text}\nrows: {file.path}\none run: {run}\nreport: {folder / 'report.html'}")
