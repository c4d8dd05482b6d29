"""`infhess bench curvature`: a table of comparisons."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from infhess.cli.options import DataDir, Folder, Fresh, Seed, Workers, remedies

if TYPE_CHECKING:
    from infhess.harness.jobs import Job
    from infhess.harness.rows import RowFile


class Comparison(NamedTuple):
    """A module of `infhess.bench`, what its jobs ask for beside the seed, whether they are timed, the name of its figure."""

    module: str
    asks: tuple[str, ...] = ()
    timed: bool = False
    figure: str = ""


COMPARISONS = {
    "": Comparison("curvature_bench", figure="curvature.svg"),
    "coverage": Comparison("coverage", ("trials",)),
    "density": Comparison("density_coverage", ("trials",)),
    "trace": Comparison("trace_methods", timed=True),
    "tracker": Comparison("tracked_products"),
    "large": Comparison("large_nets", timed=True),
    "edge": Comparison("edge_of_stability", figure="edge.svg"),
    "seconds": Comparison("timed_claims", ("folder",), timed=True),
}


def _kind(name: str, what: str) -> Any:
    """The option that asks for a comparison."""
    return typer.Option(f"--{name}", help=what)


def curvature(
    out: Folder = None,
    seed: Seed = 0,
    fresh: Fresh = False,
    coverage: Annotated[bool, _kind("coverage", "Do the intervals hold? Trials against the exact spectrum.")] = False,
    density: Annotated[bool, _kind("density", "Do the bounds of `density` hold? Known spectra and two nets.")] = False,
    trace: Annotated[
        bool, _kind("trace", "Which estimate of a trace is best on mini-batches. One job at a time.")
    ] = False,
    tracker: Annotated[bool, _kind("tracker", "Products of `Tracker` beside fresh estimates, at equal width.")] = False,
    trials: Annotated[int, typer.Option("--trials", min=4, help="Trials per cell of --coverage and --density.")] = 200,
    large: Annotated[bool, _kind("large", "Transformers of up to ten million weights: seconds and memory.")] = False,
    edge: Annotated[bool, _kind("edge", "The paper's net at the edge of stability: eigenvalues beside 2/η.")] = False,
    seconds: Annotated[
        bool, _kind("seconds", "Processor seconds at equal error, beside other tools. One job at a time.")
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
        from infhess.harness.rows import RowFile

        given = {"coverage": coverage, "density": density, "trace": trace, "tracker": tracker}
        given |= {"large": large, "edge": edge, "seconds": seconds}
        kind, *more = [name for name, chosen in given.items() if chosen] or [""]
        if more:
            raise ValueError(f"expected at most one of --{', --'.join(given)}; got --{kind} and --{more[0]}")
        use(data_dir)
        folder = out or Path(f"runs/bench-curvature-{kind}" if kind else "runs/bench-curvature")
        alone = {"problem": problem or [], "method": method or []}
        asked = {"trials": trials, "folder": folder}
        arguments = seed, *(asked[name] for name in COMPARISONS[kind].asks)
        _compare(COMPARISONS[kind], RowFile(folder, fresh=fresh, seed=seed), arguments, quick, alone, workers)


def _compare(
    comparison: Comparison,
    file: RowFile,
    asked: tuple[Any, ...],
    quick: bool,
    alone: dict[str, list[str]],
    workers: int,
) -> None:
    """Run what is not in the file yet; then a summary, and a figure where there is one."""
    from infhess.cli import show
    from infhess.harness.timing import on_threads

    module = import_module(f"infhess.bench.{comparison.module}")
    show.not_installed(module.missing() if hasattr(module, "missing") else {})
    jobs = list(module.jobs(*asked, quick=quick))
    for option, chosen in alone.items():
        jobs = _only(jobs, option, chosen)
    with on_threads(1):
        show.run(jobs, file, 1 if comparison.timed else workers)
    if comparison.figure:
        module.figure(file.rows, file.path.parent / comparison.figure)
    show.summarised(file.path, module.summary(file.rows))


def _only(jobs: list[Job], option: str, chosen: list[str]) -> list[Job]:
    """Those of the problems or methods that were chosen, or all."""
    names = list(dict.fromkeys(getattr(job.template, option) for job in jobs))
    if unknown := [name for name in chosen if name not in names]:
        raise ValueError(f"--{option}: expected one of {', '.join(names)}; got {unknown[0]}")
    return [job for job in jobs if not chosen or getattr(job.template, option) in chosen]
