"""`infhess bench`: infhess and the alternatives in one run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infhess.cli.options import DataDir, FirstSeed, Folder, Fresh, Out, Seed, Seeds, Workers, remedies

if TYPE_CHECKING:
    from infhess.harness.jobs import Job
    from infhess.harness.rows import RowFile

bench = typer.Typer(no_args_is_help=True, help="Side by side with the alternatives, in one run.")


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
        figure = comparison.figure(file.rows, out / "inference.png")
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
def curvature(
    out: Folder = None,
    seed: Seed = 0,
    fresh: Fresh = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Do the intervals hold? Trials against the exact spectrum.")
    ] = False,
    trials: Annotated[int, typer.Option("--trials", min=4, help="Trials per cell of --coverage.")] = 200,
    large: Annotated[
        bool, typer.Option("--large", help="Transformers of up to ten million weights: seconds and memory.")
    ] = False,
    edge: Annotated[
        bool, typer.Option("--edge", help="The paper's net at the edge of stability: eigenvalues beside 2/η.")
    ] = False,
    seconds: Annotated[
        bool, typer.Option("--seconds", help="Traces and densities in seconds at equal error. One job at a time.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two small problems that need no data folder.")] = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Top eigenvalues from mini-batches beside other tools, at equal work; the coverage of intervals; seconds at equal error.

    With --large, how seconds and memory grow with weights, data and k; with --edge, curvature along training.

    Example: `infhess bench curvature --coverage --trials 50 --data-dir data`
    """
    with remedies():
        from infhess.bench import coverage as intervals
        from infhess.bench import curvature_bench, edge_of_stability, eigen_baselines, equal_error, large_nets
        from infhess.cli import show
        from infhess.data import use
        from infhess.harness.rows import RowFile
        from infhess.harness.timing import on_threads

        if coverage + large + edge + seconds > 1:
            raise ValueError("expected at most one of --coverage, --large, --edge and --seconds")
        use(data_dir)
        kinds = {"-coverage": coverage, "-large": large, "-edge": edge, "-seconds": seconds}
        kind = next((name for name, chosen in kinds.items() if chosen), "")
        folder = out or Path(f"runs/bench-curvature{kind}")
        file = RowFile(folder, fresh=fresh, seed=seed)
        if large:
            _in_turn(large_nets.jobs(seed, quick=quick), file)
            return _summarised(file.path, large_nets.summary(file.rows))
        if edge:
            show.run(list(edge_of_stability.jobs(seed, quick=quick)), file, workers)
            edge_of_stability.figure(file.rows, folder / "edge.svg")
            return _summarised(file.path, edge_of_stability.summary(file.rows))
        if coverage:
            problems = curvature_bench.QUICK if quick else intervals.PROBLEMS
            show.run(list(intervals.jobs(seed, trials, problems)), file, workers)
            return _summarised(file.path, intervals.summary(file.rows))
        if seconds:
            chosen = equal_error.PROBLEMS[:1] if quick else equal_error.PROBLEMS
            with on_threads(1):
                _in_turn(equal_error.jobs(seed, chosen), file)
            return _summarised(file.path, equal_error.summary(file.rows))
        show.not_installed(eigen_baselines.missing_tools())
        show.run(list(curvature_bench.jobs(seed, quick=quick)), file, workers)
        curvature_bench.figure(file.rows, folder / "curvature.png")
        return _summarised(file.path, curvature_bench.summary(file.rows))


@bench.command()
def convex(
    out: Folder = None,
    seed: FirstSeed = 0,
    seeds: Seeds = 5,
    tune: Annotated[bool, typer.Option("--tune", help="Find the baselines' best settings, on another seed.")] = False,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="minimize to eight digits, beside solvers; timed one by one.")
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
        if accuracy and tune:
            raise ValueError("expected at most one of --accuracy and --tune")
        if accuracy:
            return _accuracy(out or Path("runs/bench-convex-accuracy"), _seeds(seed, seeds, quick), quick, fresh)
        show.not_installed(missing(METHODS))
        folder = out or Path("runs/bench-convex-tuning" if tune else "runs/bench-convex")
        file, budgets = RowFile(folder, fresh=fresh), convex_bench.QUICK if quick else convex_bench.BUDGETS
        if tune:
            show.run(list(convex_bench.tuning(budgets)), file, workers)
            settings = write_settings(convex_bench.best(file.rows), folder / "tuned.json")
            return typer.echo(f"rows: {file.path}\nsettings: {settings}")
        reported = _seeds(seed, seeds, quick)
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
        for name in names:  # a problem at a time is in memory
            _in_turn(comparison.optima([name]), file)
            _in_turn(comparison.jobs(file.rows, [name], seeds), file)
    text = comparison.report(file.rows, folder, seeds)
    run = comparison.picture(folder / "run.png", seeds[0])
    typer.echo(f"{text}\nrows: {file.path}\none run: {run}\nreport: {folder / 'report.html'}")


@bench.command()
def deep(
    out: Folder = None,
    seed: FirstSeed = 0,
    seeds: Seeds = 3,
    starts: Annotated[
        bool, typer.Option("--starts", help="infhess around sgd, momentum and Adam from any rate.")
    ] = False,
    tune: Annotated[bool, typer.Option("--tune", help="Find the best rates of sgd and momentum for --starts.")] = False,
    cost: Annotated[bool, typer.Option("--cost", help="What a step and an estimate cost on the paper's net.")] = False,
    safety: Annotated[
        bool, typer.Option("--safety", help="500 short runs of RateFree in any units, batch and precision.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two problems, 100 steps, one seed.")] = False,
    length: Annotated[
        list[int] | None, typer.Option("--length", min=1, help="Times the steps; may be repeated.")
    ] = None,
    problem_set: Annotated[
        list[str] | None, typer.Option("--set", help="development, held-out, final or full width; may be repeated.")
    ] = None,
    problem: Annotated[list[str] | None, typer.Option("--problem", help="This one alone; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="This one alone; may be repeated.")] = None,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Nets: infhess and what users would pick instead, at all rates; from any rate; or what the optimizer costs.

    Example: `infhess bench deep --set final --length 1 --length 4 --seed 100 --data-dir data`

    Example: `infhess bench deep --problem mnist-mlp --method "infhess, no learning rate" --method Adam`
    """
    with remedies():
        from infhess.bench import any_rate, any_rate_report, deep_bench, deep_results
        from infhess.bench.deep_baselines import COMPARED, METHODS
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments import plots
        from infhess.harness.comparison import write_settings
        from infhess.harness.methods import missing
        from infhess.harness.rows import RowFile
        from infhess.harness.timing import on_threads

        if tune + cost + safety + starts > 1:
            raise ValueError("expected at most one of --starts, --tune, --cost and --safety")
        if (cost or safety) and (problem or method):
            raise ValueError("--problem and --method: not with --cost or --safety, which have their own")
        use(data_dir)
        if cost or safety:
            return _optimizer_in_nets(out, seed, cost=cost, quick=quick, fresh=fresh, workers=workers)
        plots.require()
        show.not_installed(missing(METHODS))
        kind = "-tuning" if tune else "-starts" if starts else ""
        folder, usual = out or Path(f"runs/bench-deep{kind}"), tuple(METHODS) if tune or starts else COMPARED
        chosen_sets = problem_set or (["development"] if kind and not problem else [])
        names = deep_bench.names(problem or (deep_bench.QUICK if quick else ()), chosen_sets, length or (1,))
        reported = _seeds(seed, seeds, quick)
        chosen = deep_bench.Selection(names, reported, deep_bench.methods(method or (), usual), 100 if quick else 0)
        file = RowFile(folder, fresh=fresh)
        if tune:
            show.run(list(any_rate.tuning(chosen)), file, workers)
            settings = write_settings(any_rate.best(file.rows), folder / "tuned-deep.json")
            return typer.echo(f"rows: {file.path}\nsettings: {settings}")
        with on_threads(1):  # CPU seconds are of one thread
            if starts:
                for jobs in (any_rate.jobs, any_rate.starts, any_rate.units):
                    show.run(list(jobs(chosen)), file, workers)
                text = any_rate_report.report(file.rows, reported, folder)
            else:
                show.run(list(deep_bench.jobs(chosen)), file, workers)
                show.run(list(deep_bench.beyond(chosen, file.rows)), file, workers)
                text = deep_results.report(file.rows, reported, folder)
        return typer.echo(f"{text}\nrows: {file.path}\nreport: {folder / 'report.html'}")


def _optimizer_in_nets(out: Path | None, seed: int, *, cost: bool, quick: bool, fresh: bool, workers: int) -> None:
    """What it costs beside its base on the paper's net, or whether runs are lost in unusual conditions."""
    from infhess.bench import cost as costs
    from infhess.bench import safety
    from infhess.cli import show
    from infhess.harness.rows import RowFile

    folder = out or Path(f"runs/bench-deep-{'cost' if cost else 'safety'}")
    file = RowFile(folder, fresh=fresh, seed=seed)
    # Times are taken one after the other, in this process.
    comparison, processes = (costs, 1) if cost else (safety, workers)
    show.run(list(comparison.jobs(seed, quick=quick)), file, processes)
    _summarised(file.path, comparison.summary(file.rows))


def _summarised(rows: Path, text: str) -> None:
    """summary.md beside the rows, and on the terminal."""
    from infhess.harness.tables import write

    typer.echo(f"{text}\nrows: {rows}\nsummary: {write(rows.parent / 'summary.md', text)}")


def _seeds(first: int, count: int | None, quick: bool) -> list[int]:
    return list(range(first, first + (1 if quick else count or 1)))
