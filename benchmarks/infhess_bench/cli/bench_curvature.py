"""`infhess bench curvature`: a table of comparisons."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from infhess.cli.options import Fresh, Seed, flag
from infhess.cli.usage import remedies
from infhess_bench.cli.options import DataDir, Folder, Methods, Problems, Workers, one_kind

if TYPE_CHECKING:
    from infhess_bench.harness.jobs import Job


class Comparison(NamedTuple):
    """A module of `bench`, what its jobs ask for beside the seed, whether they are timed, the name of its figure."""

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
    "seconds": Comparison("equal_error", ("folder",), timed=True),
}


def curvature(
    out: Folder = None,
    seed: Seed = 0,
    fresh: Fresh = False,
    coverage: Annotated[bool, flag("coverage", "Do the intervals hold? Trials against the exact spectrum.")] = False,
    density: Annotated[bool, flag("density", "Do the bounds of `density` hold? Known spectra and two nets.")] = False,
    trace: Annotated[
        bool, flag("trace", "Which estimate of a trace is best on mini-batches. One job at a time.")
    ] = False,
    tracker: Annotated[bool, flag("tracker", "Products of `Tracker` beside fresh estimates, at equal width.")] = False,
    trials: Annotated[int, typer.Option("--trials", min=4, help="Trials per cell of --coverage and --density.")] = 200,
    large: Annotated[bool, flag("large", "Transformers of up to ten million weights: seconds and memory.")] = False,
    edge: Annotated[bool, flag("edge", "The paper's net at the edge of stability: eigenvalues beside 2/η.")] = False,
    seconds: Annotated[
        bool, flag("seconds", "Processor seconds at equal error, beside other tools. One job at a time.")
    ] = False,
    problem: Problems = None,
    method: Methods = None,
    quick: Annotated[bool, flag("quick", "Small problems that need no data folder.")] = False,
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
        from infhess_bench.cli import show
        from infhess_bench.data import use
        from infhess_bench.harness import RowFile, on_threads

        given = {"coverage": coverage, "density": density, "trace": trace, "tracker": tracker}
        given |= {"large": large, "edge": edge, "seconds": seconds}
        kind = one_kind(given)
        use(data_dir)
        folder = out or Path(f"runs/bench-curvature-{kind}" if kind else "runs/bench-curvature")
        alone = {"problem": problem or [], "method": method or []}
        asked = {"trials": trials, "folder": folder}
        comparison, file = COMPARISONS[kind], RowFile(folder, fresh=fresh, seed=seed)
        module = import_module(f"infhess_bench.bench.{comparison.module}")
        show.not_installed(module.missing() if hasattr(module, "missing") else {})
        jobs = list(module.jobs(seed, *(asked[name] for name in comparison.asks), quick=quick))
        for option, chosen in alone.items():
            jobs = _only(jobs, option, chosen)
        with on_threads(1):
            show.run(jobs, file, 1 if comparison.timed else workers)
        if comparison.figure:
            module.figure(file.rows, folder / comparison.figure)
        show.summarised(file.path, module.summary(file.rows))


def _only(jobs: list[Job], option: str, chosen: list[str]) -> list[Job]:
    """Those of the problems or methods that were chosen, or all."""
    names = list(dict.fromkeys(getattr(job.template, option) for job in jobs))
    if unknown := [name for name in chosen if name not in names]:
        raise ValueError(f"--{option}: expected one of {', '.join(names)}; got {unknown[0]}")
    return [job for job in jobs if not chosen or getattr(job.template, option) in chosen]
