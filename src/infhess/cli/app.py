"""The commands; each imports what it needs when it runs, so that --help is quick."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infhess._version import __version__
from infhess.cli.bench import bench
from infhess.cli.data import data
from infhess.cli.options import DataDir, FirstSeed, Folder, Fresh, Out, Seed, Seeds, Workers, flag
from infhess.cli.usage import OneLine, remedies

if TYPE_CHECKING:
    from infhess.cli.measure import Asked
    from infhess.harness.rows import RowFile

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
def demo(out: Out = Path("runs/demo"), seed: Seed = 0, fresh: Fresh = False) -> None:
    """A convex problem, a net, and the net's sharpness with error bars: a figure and three tables within a minute.

    Example: `infhess demo --seed 3 --out runs/demo-3`
    """
    with remedies():
        from infhess.cli import show
        from infhess.experiments import demo as experiment
        from infhess.experiments import plots
        from infhess.harness.rows import RowFile

        plots.require("matplotlib", "sklearn")
        file = RowFile(out, fresh=fresh, seed=seed)
        rows = [row for row in file.rows if row.experiment == experiment.EXPERIMENT]
        if not rows:
            with show.progress("training"):
                rows = list(experiment.rows(seed))
            file.add(rows)
        figure = experiment.figure(rows, out / "demo.png", out / "demo.svg")
        experiment.summary(rows, out / "summary.md")
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
    out: Out = Path("runs/spectrum"),
    seed: Seed = 0,
    fresh: Fresh = False,
) -> None:
    """Top curvature of your own loss over all its data, from mini-batches, with error bars.

    Example: `infhess spectrum infhess.problems.example:small_net --k 5 --rtol 0.2 --density --layers`

    Example: `infhess spectrum train.py:net --k 2 --watch checkpoints`
    """
    with remedies():
        import json

        from infhess.cli import measure, show
        from infhess.cli.extras import density_figure
        from infhess.experiments import plots
        from infhess.harness.rows import RowFile, set_aside
        from infhess.harness.tables import write

        if watch is None and RowFile(out).rows and not fresh:
            remedy = "choose another --out, or keep it aside with --fresh"
            raise ValueError(f"{out / 'rows.csv'} holds an earlier result; {remedy}")
        if watch is not None and (density or layers):
            raise ValueError("--density and --layers are of one net; leave them out with --watch")
        asked = measure.Asked(k, rtol, budget, matrix.value, products.value, seed)
        try:
            if watch is not None:
                return _watch(RowFile(out, fresh=fresh, seed=seed), watch, target, asked)
            with show.progress(f"spectrum of {target}"):
                measured = measure.measure(target, asked, density=density, layers=layers)
        except measure.UserCodeError as error:
            raise (error.__cause__ or error) if traceback else error from error.__cause__
        for name in ("spectrum.json", "spectrum.png", "density.png"):
            set_aside(out / name)
        file = RowFile(out, fresh=fresh)
        file.add(measured.rows(seed))
        write(out / "spectrum.json", json.dumps(measured.as_dict(), indent=1))
        show.spectrum(measured)
        typer.echo(f"\nrows: {file.path}\nnumbers: {out / 'spectrum.json'}")
        if not plots.available():
            return typer.echo("no figure: it needs matplotlib; pip install 'infhess[experiments]'")
        figure: object = measure.figure(file.rows, out / "spectrum.png")
        if measured.extras.density is not None:
            figure = f"{figure}, {density_figure(measured.extras.density, out / 'density.png')}"
        return typer.echo(f"figure: {figure}")


def _watch(file: RowFile, folder: Path, target: str, asked: Asked) -> None:
    """Checkpoints that have no rows yet, then all of them as a table; a second run goes on with new ones."""
    from infhess.cli import show, watch

    done = {row.problem for row in file.rows if row.experiment == watch.EXPERIMENT}
    if len(done) < len({row.problem for row in file.rows}):
        raise ValueError(f"{file.path} holds other rows; choose another --out, or keep them aside with --fresh")
    todo = [path for path in watch.checkpoints(folder) if path.name not in done]
    found = watch.watched(target, todo, asked)
    for path in todo:
        with show.progress(path.name):
            file.add(next(found))
    show.table(f"Top curvature of {target}", *watch.table(file.rows))
    new = f"{len(todo)} new checkpoint{'' if len(todo) == 1 else 's'}"
    typer.echo(f"{new}. Run it again for those to come.\nrows: {file.path}")
