"""The commands; each imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infhess._version import __version__
from infhess.cli.bench import bench
from infhess.cli.data import data
from infhess.cli.options import DataDir, FirstSeed, Folder, Fresh, Kept, Seed, Seeds, Workers, flag
from infhess.cli.usage import OneLine, remedies, with_out

if TYPE_CHECKING:
    from infhess.cli.measure import Asked, Measured
    from infhess.harness.rows import Row

app = typer.Typer(
    name="infhess",
    cls=OneLine,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Curvature of PyTorch losses from noisy mini-batches, with error bars, and training without a learning rate.",
    epilog="Example: `infhess demo`",
)
app.add_typer(bench, name="bench")
app.add_typer(data, name="data")


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
    """Curvature of PyTorch losses from noisy mini-batches, with error bars, and training without a learning rate."""


@app.command()
def demo(out: Kept = None, seed: Seed = 0, fresh: Fresh = False) -> None:
    """A convex problem, a net, and the net's sharpness with error bars: a figure and three tables within a minute.

    Example: `infhess demo --seed 3 --out runs/demo-3`
    """
    with remedies():
        from tempfile import mkdtemp

        from infhess.cli import show
        from infhess.experiments import demo as experiment
        from infhess.experiments import plots
        from infhess.harness.rows import RowFile

        with_out(out, fresh=fresh)
        plots.require("matplotlib", "sklearn")
        file = RowFile(out, fresh=fresh, seed=seed) if out else None
        rows = [row for row in file.rows if row.experiment == experiment.EXPERIMENT] if file else []
        if not rows:
            with show.progress("training"):
                rows = list(experiment.rows(seed))
            if file:
                file.add(rows)
        show.demo(rows)
        if file is None or out is None:
            figure = experiment.figure(rows, Path(mkdtemp(prefix="infhess-demo-")) / "demo.png")
            return typer.echo(f"\nfigure: {figure}\nTo keep it, with its rows and tables: infhess demo --out DIR")
        figure = experiment.figure(rows, out / "demo.png", out / "demo.svg")
        experiment.summary(rows, out / "summary.md")
        return typer.echo(f"\nrows: {file.path}\nfigure: {figure}")


class Experiment(str, Enum):
    """The experiments of the paper."""

    regression = "regression"
    logistic = "logistic"
    deep = "deep"


@app.command()
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
        from infhess.cli import show
        from infhess.data import use
        from infhess.experiments import reproduce as paper
        from infhess.harness.rows import RowFile

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
    rtol: Annotated[float | None, flag("rtol", "Go on until the 95 % intervals are within ± rtol.")] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", min=1, help="With --rtol: no further round beyond so many data points.")
    ] = None,
    matrix: Annotated[Matrix, flag("matrix", "Which matrix.")] = Matrix.hessian,
    products: Annotated[Way, flag("products", "How products are taken.")] = Way.exact,
    watch: Annotated[
        Path | None,
        typer.Option("--watch", metavar="CHECKPOINTS", help="A folder of checkpoints of the model: one line for each."),
    ] = None,
    density: Annotated[bool, flag("density", "The density of all eigenvalues too.")] = False,
    layers: Annotated[bool, flag("layers", "Trace and largest eigenvalue of each layer too.")] = False,
    traceback: Annotated[bool, flag("traceback", "Show errors of your own code whole.")] = False,
    out: Kept = None,
    seed: Seed = 0,
    fresh: Fresh = False,
) -> None:
    """Top curvature of your own loss over all its data, from mini-batches, with error bars.

    Example: `infhess spectrum infhess.problems.example:small_net --k 5 --rtol 0.2 --density --layers`

    Example: `infhess spectrum train.py:net --k 2 --watch checkpoints`
    """
    with remedies():
        from infhess.cli import measure, show

        with_out(out, fresh=fresh)
        if watch is not None and (density or layers):
            raise ValueError("--density and --layers are of one net; leave them out with --watch")
        asked = measure.Asked(k, rtol, budget, matrix.value, products.value, seed)
        try:
            if watch is not None:
                return _watch(target, asked, watch, out, fresh)
            source = measure.prepared(target, asked)
            _no_earlier_result(out, fresh)  # now that the code is known to load, and before anything takes time
            with show.progress(f"spectrum of {target}"):
                measured = measure.measure(target, source, asked, density=density, layers=layers)
        except measure.UserCodeError as error:
            raise (error.__cause__ or error) if traceback else error from error.__cause__
        show.spectrum(measured)
        if out is None:
            return typer.echo("\nTo keep rows, numbers and a figure: --out DIR")
        return _keep(measured, out, seed, fresh)


def _no_earlier_result(out: Path | None, fresh: bool) -> None:
    """Raise an error if rows are to be kept where there are some, or where none can be."""
    from infhess.harness.rows import RowFile

    if out is not None and RowFile(out).rows and not fresh:
        remedy = "choose another --out, or keep it aside with --fresh"
        raise ValueError(f"{out / 'rows.csv'} holds an earlier result; {remedy}")


def _keep(measured: Measured, out: Path, seed: int, fresh: bool) -> None:
    """Rows, numbers and figures; those of an earlier run are set aside."""
    import json

    from infhess.cli import measure
    from infhess.cli.extras import density_figure
    from infhess.experiments import plots
    from infhess.harness.rows import RowFile, set_aside
    from infhess.harness.tables import write

    for name in ("spectrum.json", "spectrum.png", "density.png"):
        set_aside(out / name)
    file = RowFile(out, fresh=fresh)
    file.add(measured.rows(seed))
    write(out / "spectrum.json", json.dumps(measured.as_dict(), indent=1))
    typer.echo(f"\nrows: {file.path}\nnumbers: {out / 'spectrum.json'}")
    if not plots.available():
        return typer.echo("no figure: it needs matplotlib; pip install 'infhess[experiments]'")
    figure: object = measure.figure(file.rows, out / "spectrum.png")
    if measured.extras.density is not None:
        figure = f"{figure}, {density_figure(measured.extras.density, out / 'density.png')}"
    return typer.echo(f"figure: {figure}")


def _watch(target: str, asked: Asked, folder: Path, out: Path | None, fresh: bool) -> None:
    """All checkpoints as a table; with --out a second run computes new ones alone."""
    from infhess.cli import show, watch
    from infhess.harness.rows import RowFile

    paths, tracker = watch.checkpoints(folder), watch.prepared(target, asked)
    file = RowFile(out, fresh=fresh, seed=asked.seed) if out else None
    rows: list[Row] = file.rows if file else []
    done = {row.problem for row in rows if row.experiment == watch.EXPERIMENT}
    if file and len(done) < len({row.problem for row in rows}):
        raise ValueError(f"{file.path} holds other rows; choose another --out, or keep them aside with --fresh")
    todo = [path for path in paths if path.name not in done]
    found = tracker.rows(todo)
    for path in todo:
        with show.progress(path.name):
            new = next(found)
        if file:
            file.add(new)
            rows = file.rows
        else:
            rows = [*rows, *new]
    show.table(f"Top curvature of {target}", *watch.table(rows))
    if file is None:
        return typer.echo("To keep rows, so that a second run computes new checkpoints alone: --out DIR")
    new_ones = f"{len(todo)} new checkpoint{'' if len(todo) == 1 else 's'}"
    return typer.echo(f"{new_ones}. Run it again for those to come.\nrows: {file.path}")
