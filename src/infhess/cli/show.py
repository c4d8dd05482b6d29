"""Tables and progress for a person at a terminal; plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from infhess.cli.measure import Measured
from infhess.cli.rows import Row


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
    from infhess.cli.demo_report import NEXT, tables

    for title, (head, *lines), seen in tables(rows):
        table(title, head, lines)
        print(f"{seen}\n")
    print(NEXT)


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
