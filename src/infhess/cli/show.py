"""Tables and progress for a person at a terminal; plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.table import Table

from infhess.cli.measure import Measured
from infhess.data import File
from infhess.experiments.page import Claim
from infhess.harness import Row, RowFile, write
from infhess.harness.jobs import Job, cores
from infhess.harness.jobs import run as run_jobs


def console() -> Console:
    """A console, 100 columns wide if there is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 100)


@contextmanager
def progress(title: str) -> Iterator[None]:
    """A spinner on a terminal, a plain line elsewhere."""
    if not sys.stdout.isatty():
        print(f"{title} …", flush=True)
        yield
        return
    with console().status(title):
        yield


def run(jobs: Sequence[Job], file: RowFile, workers: int) -> None:
    """Run jobs over processes, with a progress bar on a terminal and one line per job elsewhere."""
    todo = [job for job in jobs if job.key not in file.done()]
    # Closed here, whatever happens: a generator that an exception keeps alive would keep its workers alive.
    with closing(run_jobs(todo, file, workers or cores())) as finished:
        if not sys.stdout.isatty():
            for i, job in enumerate(finished, 1):
                print(f"[{i}/{len(todo)}] {job.title}", flush=True)
            return
        with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console()) as bar:
            task = bar.add_task("computing", total=len(todo))
            for job in finished:
                bar.update(task, advance=1, description=job.title)


def summarised(rows: Path, text: str) -> None:
    """Write summary.md next to the rows, and print it."""
    print(f"{text}\nrows: {rows}\nsummary: {write(rows.parent / 'summary.md', text)}")


def not_installed(absent: Mapping[str, str]) -> None:
    """One line for each method that is left out."""
    for method, package in absent.items():
        print(f"{package} is not installed, so not run: {method} (pip install 'infhess[bench]')")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    grid = Table(title=title, title_justify="left")
    for name in columns:
        grid.add_column(name, justify="right" if name != columns[0] else "left")
    for row in rows:
        grid.add_row(*row)
    console().print(grid)


def demo(rows: Sequence[Row]) -> None:
    """A table for each part, what it shows, and what to run next."""
    from infhess.experiments.demo import NEXT, tables

    for title, (head, *lines), seen in tables(rows):
        table(title, head, lines)
        print(f"{seen}\n")
    print(NEXT)


def claims(found: Sequence[Claim]) -> None:
    """What the paper says, what was found, and whether it holds."""
    grid = Table(show_lines=True)
    for name in ("the paper", "found here", "verdict"):
        grid.add_column(name)
    for claim in found:
        grid.add_row(claim.paper, f"{claim.found} {claim.why}".strip(), claim.verdict)
    console().print(grid)


def inference(rows: Sequence[Row]) -> None:
    """Ratios of the loop to its bounds."""
    from infhess.bench.inference import targets

    lines = [[r.problem, r.method, f"{r.seconds:.4g}", f"{r.metric:.3g}"] for r in rows]
    table("Inference loop at m = 16, float32", ["problem", "measure", "seconds", "ratio or amount"], lines)
    lines = [[t.what, f"{t.measured:.3g}", t.wanted, "yes" if t.met else "NO"] for t in targets(rows)]
    table("Targets", ["what", "measured", "target", "met"], lines)


def spectrum(measured: Measured) -> None:
    """Eigenvalues with intervals, what they cost and why it stopped."""
    found = measured.found
    columns = found.values.tolist(), found.std.tolist(), measured.low, measured.high, found.resolved.tolist()
    lines = [
        [str(i), f"{v:.4g}", f"{s:.2g}", f"{low:.4g} … {high:.4g}", "yes" if r else "no"]
        for i, (v, s, low, high, r) in enumerate(zip(*columns), 1)
    ]
    head = ["eigenvalue", "value", "std", "95 % interval", "stands out from noise"]
    table(f"Top of the spectrum, {found.vectors.shape[0]} parameters", head, lines)
    value, std = found.lowest
    console().print(
        f"Smallest value seen {value:.3g} ± {std:.2g}. {found.products} products, {found.data_points} data points, "
        f"{measured.seconds:.1f} s; stopped: {found.stopped}."
    )
    layers, shares = measured.extras.layer_lines(), measured.extras.density_lines()
    if layers:
        table("Layers, with 95 % intervals", ["layer", "trace", "largest eigenvalue"], layers)
    if shares and measured.extras.density is not None:
        table("Shares of all eigenvalues", ["eigenvalues", "share", "95 % interval"], shares)
        error = measured.extras.density.data_error
        if error:
            console().print(f"Data that was not read adds up to ± {error:.2g} to an interval.")


def datasets() -> None:
    """One line per data set: size, licence, where it is."""
    from infhess.data import DATASETS, DataError, found

    lines = []
    for name, dataset in DATASETS.items():
        first = dataset.files[0]
        try:
            names = first.members or (first.path,)
            where = str(found(name, *names, *(f"{n}.gz" for n in names)).parent)
        except DataError:
            where = f"not here: infhess data get {name}"
        lines.append([name, dataset.title, f"{dataset.size / 1e6:.0f} MB", dataset.licence, where])
    table("Data sets", ["name", "what", "download", "licence", "where"], lines)


class Bar:
    """A progress bar of rich for one file, with pooch's interface."""

    def __init__(self, progress: Progress, file: File) -> None:
        self._progress, self._task = progress, progress.add_task(file.name, total=file.size)
        self.total = file.size

    def update(self, n: int) -> None:
        """Advance by n bytes."""
        self._progress.update(self._task, advance=n)

    def reset(self) -> None:
        """Start over."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Finish."""
        self._progress.stop_task(self._task)


@contextmanager
def downloads() -> Iterator[Callable[[File], Bar | bool]]:
    """Makes one progress bar per file on a terminal; a plain line elsewhere."""
    if not sys.stdout.isatty():
        yield _announced
        return
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console()) as bars:
        yield lambda file: Bar(bars, file)


def _announced(file: File) -> bool:
    """A line instead of a progress bar."""
    print(f"fetching {file.name}, {file.size / 1e6:.1f} MB …", flush=True)
    return False
