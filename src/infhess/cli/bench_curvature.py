"""`infhess bench curvature`: a table of comparisons."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from infhess.cli.options import DataDir, Folder, Fresh, Seed, Workers, remedies

if TYPE_CHECKING:
    from infhess.harness.jobs import Job


class Asked(NamedTuple):
    """What a comparison may ask for."""

    seed: int
    trials: int
    quick: bool
    folder: Path


class Comparison(NamedTuple):
    """A module of `infhess.bench`, how its jobs are asked for, whether they are timed, and the name of its figure."""

    module: str
    jobs: Callable[[Any, Asked], Any]
    timed: bool = False
    figure: str = ""


def _plain(module: Any, asked: Asked) -> Any:
    return module.jobs(asked.seed, quick=asked.quick)


def _trials(module: Any, asked: Asked) -> Any:
    return module.jobs(asked.seed, asked.trials, quick=asked.quick)


COMPARISONS = {
    "": Comparison("curvature_bench", _plain, figure="curvature.svg"),
    "coverage": Comparison("coverage", _trials),
    "density": Comparison("density_coverage", _trials),
    "trace": Comparison("trace_methods", _plain, timed=True),
    "tracker": Comparison("tracked_products", _plain),
    "large": Comparison("large_nets", _plain, timed=True),
    "edge": Comparison("edge_of_stability", _plain, figure="edge.svg"),
    "seconds": Comparison("timed_claims", lambda m, a: m.jobs(a.seed, a.folder, quick=a.quick), timed=True),
}


def curvature(
    out: Folder = None,
    seed: Seed = 0,
    fresh: Fresh = False,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Do the intervals hold? Trials against the exact spectrum.")
    ] = False,
    density: Annotated[
        bool, typer.Option("--density", help="Do the bounds of `density` hold? Known spectra and two nets.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Which estimate of a trace is best on mini-batches. One job at a time.")
    ] = False,
    tracker: Annotated[
        bool, typer.Option("--tracker", help="Products of `Tracker` beside fresh estimates, at equal width.")
    ] = False,
    trials: Annotated[int, typer.Option("--trials", min=4, help="Trials per cell of --coverage and --density.")] = 200,
    large: Annotated[
        bool, typer.Option("--large", help="Transformers of up to ten million weights: seconds and memory.")
    ] = False,
    edge: Annotated[
        bool, typer.Option("--edge", help="The paper's net at the edge of stability: eigenvalues beside 2/η.")
    ] = False,
    seconds: Annotated[
        bool, typer.Option("--seconds", help="Processor seconds at equal error, beside other tools. One job at a time.")
    ] = False,
    problem: Annotated[list[str] | None, typer.Option("--problem", help="This one alone; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="This one alone; may be repeated.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small problems that need no data folder.")] = False,
    workers: Workers = 0,
    data_dir: DataDir = None,
) -> None:
    """Top eigenvalues from mini-batches beside other tools, at equal work; the coverage of intervals; seconds at equal error.

    One kind at a time, each with rows of its own. With --large, how seconds and memory grow with weights, data and k; with
    --edge, curvature along training.

    Example: `infhess bench curvature --coverage --trials 50 --data-dir data`

    Example: `infhess bench curvature --seconds --problem "1e4 weights"`
    """
    with remedies():
        from infhess.data import use

        given = {"coverage": coverage, "density": density, "trace": trace, "tracker": tracker}
        given |= {"large": large, "edge": edge, "seconds": seconds}
        kind, *more = [name for name, chosen in given.items() if chosen] or [""]
        if more:
            raise ValueError(f"expected at most one of --{', --'.join(given)}; got --{kind} and --{more[0]}")
        use(data_dir)
        folder = out or Path(f"runs/bench-curvature-{kind}" if kind else "runs/bench-curvature")
        alone = {"problem": problem or [], "method": method or []}
        _compare(COMPARISONS[kind], Asked(seed, trials, quick, folder), alone, fresh, workers)


def _compare(comparison: Comparison, asked: Asked, alone: dict[str, list[str]], fresh: bool, workers: int) -> None:
    """Run what is not in the file yet; then a summary, and a figure where there is one."""
    from infhess.cli import show
    from infhess.harness.rows import RowFile
    from infhess.harness.timing import on_threads

    module, file = (
        import_module(f"infhess.bench.{comparison.module}"),
        RowFile(asked.folder, fresh=fresh, seed=asked.seed),
    )
    show.not_installed(module.missing() if hasattr(module, "missing") else {})
    jobs = list(comparison.jobs(module, asked))
    for option, chosen in alone.items():
        jobs = _only(jobs, option, chosen)
    with on_threads(1):
        show.run(jobs, file, 1 if comparison.timed else workers)
    if comparison.figure:
        module.figure(file.rows, asked.folder / comparison.figure)
    show.summarised(file.path, module.summary(file.rows))


def _only(jobs: list[Job], option: str, chosen: list[str]) -> list[Job]:
    """Those of the problems or methods that were chosen, or all."""
    names = list(dict.fromkeys(getattr(job.template, option) for job in jobs))
    if unknown := [name for name in chosen if name not in names]:
        raise ValueError(f"--{option}: expected one of {', '.join(names)}; got {unknown[0]}")
    return [job for job in jobs if not chosen or getattr(job.template, option) in chosen]
