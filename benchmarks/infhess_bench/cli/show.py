"""Progress of jobs and downloads, and tables of what was measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.table import Table

from infhess.cli.rows import Row, RowFile
from infhess.cli.show import console, table
from infhess.cli.tables import write
from infhess_bench.data import File
from infhess_bench.experiments.page import Claim
from infhess_bench.harness.jobs import Job, cores
from infhess_bench.harness.jobs import run as run_jobs


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
        print(f"{package} is not installed, so not run: {method} (pip install -e 'benchmarks[bench]')")


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
    from infhess_bench.bench.inference import targets

    lines = [[r.problem, r.method, f"{r.seconds:.4g}", f"{r.metric:.3g}"] for r in rows]
    table("Inference loop at m = 16, float32", ["problem", "measure", "seconds", "ratio or amount"], lines)
    lines = [[t.what, f"{t.measured:.3g}", t.wanted, "yes" if t.met else "NO"] for t in targets(rows)]
    table("Targets", ["what", "measured", "target", "met"], lines)


def datasets() -> None:
    """One line per data set: size, licence, where it is."""
    from infhess_bench.data import DATASETS, DataError, found

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
