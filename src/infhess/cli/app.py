"""The commands; each imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from infhess._version import __version__

app = typer.Typer(
    name="infhess",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Learn what a matrix looks like from noisy products with it, and train faster with what was learnt.",
)
bench = typer.Typer(no_args_is_help=True, help="Side by side with the alternatives, in one run.")
app.add_typer(bench, name="bench")
data = typer.Typer(no_args_is_help=True, help="Data sets: what there is, and how to get it.")
app.add_typer(data, name="data")

Out = Annotated[Path, typer.Option("--out", help="Folder for rows.csv and figures.", show_default=True)]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes; 0 for one a core.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the data sets; else $INFHESS_DATA.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over; earlier rows are kept under another name.")]


@contextmanager
def remedies() -> Iterator[None]:
    """Bad input ends with status 2 and one line that says what to do."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        typer.secho(f"infhess: {' '.join(str(error).split())}", err=True, fg="red")
        raise typer.Exit(2) from error


def version(show: bool) -> None:
    """Print the version and end."""
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    show: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Learn what a matrix looks like from noisy products with it, and train faster with what was learnt."""


@app.command()
def demo(out: Out = Path("runs/demo"), seed: Seed = 0, fresh: Fresh = False) -> None:
    """Tell 3 from 5: sgd with the best of nine rates against preconditioned sgd with none. Less than a minute.

    Example: `infhess demo --seed 3 --out runs/demo-3`
    """
    with remedies():
        from infhess.cli import show
        from infhess.experiments import demo as experiment
        from infhess.experiments import plots
        from infhess.experiments.rows import RowFile

        file = RowFile(out, fresh=fresh, seed=seed)
        rows = [row for row in file.rows if row.experiment == experiment.EXPERIMENT]
        if not rows:
            with show.progress("training"):
                rows = list(experiment.rows(seed))
            file.add(rows)
        figure = plots.demo(rows, out / "demo.png", experiment.best_rate(rows), experiment.OURS)
        show.demo(rows)
        typer.echo(f"\nrows: {file.path}\nfigure: {figure}")


class Experiment(str, Enum):
    """The experiments of the paper."""

    regression = "regression"
    logistic = "logistic"
    deep = "deep"


@app.command()
def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="Which one.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder; by default runs/reproduce-EXPERIMENT.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version: two minutes at the most.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's size: hours, for nets on a GPU.")] = False,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """The paper's experiments on the real data: rows, figures, and a report that says claim by claim what was found.

    Example: `infhess reproduce regression --seeds 5 --data-dir data`
    """
    with remedies():
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments import reproduce as paper
        from infhess.experiments.rows import RowFile

        if quick and full:
            raise ValueError("expected one of --quick and --full")
        use(data_dir)
        folder = out or Path(f"runs/reproduce-{experiment.value}")
        file = RowFile(folder, fresh=fresh)
        plan = paper.plan(experiment.value, "quick" if quick else "full" if full else "default", seed, seeds)
        for pieces in plan.stages(file):
            show.run(pieces, file, workers)
        report = plan.report(file, folder)
        show.claims(report.claims)
        typer.echo(f"\nrows: {file.path}\nreport: {folder / 'report.html'}")


class Matrix(str, Enum):
    """Which curvature matrix."""

    hessian = "hessian"
    gauss_newton = "gauss-newton"


class Way(str, Enum):
    """How products are taken."""

    exact = "exact"
    difference = "difference"


@app.command()
def spectrum(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:FUNCTION", help="Returns (loss, params, batches) or (model, loss, batches)."),
    ],
    k: Annotated[int, typer.Option("--k", min=1, help="How many eigenvalues.")] = 10,
    rtol: Annotated[
        float | None, typer.Option("--rtol", help="Go on until the 95 % intervals are within ± rtol.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", min=1, help="With --rtol: no further round beyond so many data points.")
    ] = None,
    matrix: Annotated[Matrix, typer.Option("--matrix", help="Which matrix.")] = Matrix.hessian,
    products: Annotated[Way, typer.Option("--products", help="How products are taken.")] = Way.exact,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show errors of your own code whole.")] = False,
    out: Out = Path("runs/spectrum"),
    seed: Seed = 0,
    fresh: Fresh = False,
) -> None:
    """Top curvature of your own loss over all its data, from mini-batches, with error bars.

    Example: `infhess spectrum infhess.problems.example:small_net --k 5 --rtol 0.2`
    """
    with remedies():
        import json

        from infhess._files import atomic
        from infhess.cli import show
        from infhess.experiments import measure, plots
        from infhess.experiments.rows import RowFile, set_aside

        plots.require()
        if RowFile(out).rows and not fresh:
            raise ValueError(
                f"{out / 'rows.csv'} holds an earlier result; choose another --out, or keep it aside with --fresh"
            )
        try:
            with show.progress(f"spectrum of {target}"):
                measured = measure.measure(target, k, rtol, budget, matrix.value, products.value, seed)
        except measure.UserCodeError as error:
            raise (error.__cause__ or error) if traceback else error from error.__cause__
        for name in ("spectrum.json", "spectrum.png"):
            set_aside(out / name)
        file = RowFile(out, fresh=fresh)
        file.add(measured.rows(seed))
        with atomic(out / "spectrum.json") as temporary:
            temporary.write_text(json.dumps(measured.as_dict(), indent=1), encoding="utf-8")
        figure = plots.spectrum(file.rows, out / "spectrum.png")
        show.spectrum(measured)
        typer.echo(f"\nrows: {file.path}\nnumbers: {out / 'spectrum.json'}\nfigure: {figure}")


@bench.command()
def inference(
    out: Out = Path("runs/bench-inference"),
    seed: Seed = 0,
    fresh: Fresh = False,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes up to 1e5 only: seconds.")] = False,
) -> None:
    """Time and memory of the inference loop beside the bound of memory bandwidth and the printed algorithm. Minutes.

    Example: `infhess bench inference --out runs/inference`
    """
    with remedies():
        from infhess._files import atomic
        from infhess.bench import inference as comparison
        from infhess.cli import show
        from infhess.experiments.rows import RowFile

        file = RowFile(out, fresh=fresh, seed=seed)
        for piece in comparison.pieces(seed, quick=quick):
            if piece.key not in file.done():
                with show.progress(piece.title):
                    file.add(piece.run())
        show.inference(file.rows)
        with atomic(out / "summary.md") as temporary:
            temporary.write_text(comparison.markdown(file.rows), encoding="utf-8")
        figure = comparison.figure(file.rows, out / "inference.png")
        typer.echo(f"\nrows: {file.path}\nsummary: {out / 'summary.md'}\nfigure: {figure}")


@bench.command()
def curvature(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder; by default runs/bench-curvature[-coverage].")
    ] = None,
    seed: Seed = 0,
    fresh: Fresh = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Do the intervals hold? Trials against the exact spectrum.")
    ] = False,
    trials: Annotated[int, typer.Option("--trials", min=4, help="Trials a cell of --coverage.")] = 200,
    quick: Annotated[bool, typer.Option("--quick", help="Two small problems that need no data folder.")] = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Top eigenvalues from mini-batches beside other tools, at equal work; or the coverage of our intervals.

    Example: `infhess bench curvature --coverage --trials 50 --data-dir data`
    """
    with remedies():
        from infhess._files import atomic
        from infhess.bench import coverage as intervals
        from infhess.bench import curvature as comparison
        from infhess.bench import peers
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments.rows import RowFile

        use(data_dir)
        folder = out or Path("runs/bench-curvature-coverage" if coverage else "runs/bench-curvature")
        file = RowFile(folder, fresh=fresh, seed=seed)
        if coverage:
            problems = comparison.QUICK if quick else intervals.PROBLEMS
            show.run(list(intervals.pieces(seed, trials, problems)), file, workers)
            text = intervals.markdown(file.rows)
        else:
            for method, package in peers.missing().items():
                typer.echo(f"not installed, so not run: {method} (pip install '{package}')")
            show.run(list(comparison.pieces(seed, quick=quick)), file, workers)
            text = comparison.markdown(file.rows)
            comparison.figure(file.rows, folder / "curvature.png")
        with atomic(folder / "summary.md") as temporary:
            temporary.write_text(text, encoding="utf-8")
        typer.echo(f"{text}\nrows: {file.path}\nsummary: {folder / 'summary.md'}")


@bench.command()
def convex(
    out: Annotated[Path | None, typer.Option("--out", help="Folder; by default runs/bench-convex[-tuning].")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds.")] = 5,
    tune: Annotated[bool, typer.Option("--tune", help="Find the peers' best settings, on a seed of its own.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two small problems that need no data, one seed.")] = False,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Convex problems: ours and what users would pick instead, in data points read, in work and in seconds.

    Example: `infhess bench convex --seed 100 --data-dir data`
    """
    with remedies():
        from infhess.bench import convex as comparison
        from infhess.bench import convex_peers, convex_report
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments import plots
        from infhess.experiments.rows import RowFile

        plots.require()
        use(data_dir)
        for method, package in convex_peers.missing().items():
            typer.echo(f"not installed, so not run: {method} (pip install '{package}')")
        folder = out or Path("runs/bench-convex-tuning" if tune else "runs/bench-convex")
        file = RowFile(folder, fresh=fresh)
        budgets = comparison.QUICK if quick else comparison.BUDGETS
        if tune:
            show.run(list(comparison.tuning(budgets)), file, workers)
            typer.echo(f"rows: {file.path}\nsettings: {convex_report.write_settings(file.rows, folder)}")
            return
        reported = list(range(seed, seed + (1 if quick else seeds)))
        show.run(list(comparison.pieces(reported, budgets)), file, workers)
        show.run(list(comparison.stability(reported, budgets)), file, workers)
        text = convex_report.write(file.rows, reported, folder)
        typer.echo(f"{text}\nrows: {file.path}\nreport: {folder / 'report.html'}")


@bench.command()
def deep(
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder; by default runs/bench-deep[-tuning|-cost|-safety].")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many seeds.")] = 3,
    tune: Annotated[bool, typer.Option("--tune", help="Find the best rates of sgd, momentum and Adam.")] = False,
    cost: Annotated[bool, typer.Option("--cost", help="What a step and an estimate cost on the paper's net.")] = False,
    safety: Annotated[bool, typer.Option("--safety", help="The paper's net from rates of 1e-6 to 100.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Two problems, 100 steps, one seed.")] = False,
    full: Annotated[bool, typer.Option("--full", help="The paper's net at its full width too.")] = False,
    fresh: Fresh = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Nets: ours and what users would pick instead, from any rate and in any units; or what the optimizer costs.

    Example: `infhess bench deep --seed 100 --data-dir data`
    """
    with remedies():
        from infhess.bench import deep as comparison
        from infhess.bench import deep_peers, deep_results
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments import plots
        from infhess.experiments.rows import RowFile

        if tune + cost + safety > 1:
            raise ValueError("expected at most one of --tune, --cost and --safety")
        use(data_dir)
        if cost or safety:
            _optimizer_in_nets(out, seed, cost=cost, quick=quick, fresh=fresh, workers=workers)
            return
        plots.require()
        for method, package in deep_peers.missing().items():
            typer.echo(f"not installed, so not run: {method} (pip install '{package}')")
        folder = out or Path("runs/bench-deep-tuning" if tune else "runs/bench-deep")
        file = RowFile(folder, fresh=fresh)
        names, steps = comparison.names(quick=quick, full=full), 100 if quick else 0
        if tune:
            show.run(list(comparison.tuning(names, steps=steps)), file, workers)
            typer.echo(f"rows: {file.path}\nsettings: {deep_results.write_settings(file.rows, folder)}")
            return
        reported = list(range(seed, seed + (1 if quick else seeds)))
        for pieces in (comparison.pieces, comparison.starts, comparison.units):
            show.run(list(pieces(names, reported, steps=steps)), file, workers)
        text = deep_results.write(file.rows, reported, folder)
        typer.echo(f"{text}\nrows: {file.path}\nreport: {folder / 'report.html'}")


def _optimizer_in_nets(out: Path | None, seed: int, *, cost: bool, quick: bool, fresh: bool, workers: int) -> None:
    """What it costs beside its base, or whether any rate to start from is safe, on the paper's net."""
    from infhess._files import atomic
    from infhess.bench import cost as costs
    from infhess.bench import safety as starts
    from infhess.cli import show
    from infhess.experiments.rows import RowFile

    folder = out or Path(f"runs/bench-deep-{'cost' if cost else 'safety'}")
    file = RowFile(folder, fresh=fresh, seed=seed)
    # Times are taken one after the other, in this process.
    comparison, hands = (costs, 1) if cost else (starts, workers)
    show.run(list(comparison.pieces(seed, quick=quick)), file, hands)
    text = comparison.markdown(file.rows)
    with atomic(folder / "summary.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    typer.echo(f"{text}\nrows: {file.path}\nsummary: {folder / 'summary.md'}")


@data.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """The data sets, and where each is found.

    Example: `infhess data list --data-dir data`
    """
    with remedies():
        from infhess.cli import show
        from infhess.data import use

        use(data_dir)
        show.datasets()


@data.command("get")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="sarcos, mnist or cifar10.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder to put it in; by default the cache.")
    ] = None,
    mirror: Annotated[
        str | None, typer.Option("--mirror", help="An address that has the files by name, asked first.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds without a byte before giving up.")
    ] = 30.0,
) -> None:
    """Download a data set from where it was published, and check it.

    Example: `infhess data get mnist --data-dir data`
    """
    with remedies():
        from infhess.cli import show
        from infhess.data import get

        with show.downloads() as bar:
            for path in get(name, data_dir, mirror=mirror, timeout=timeout, bar=bar):
                typer.echo(path)
