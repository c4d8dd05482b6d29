"""Options that commands share, and what happens on bad input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("--out", help="Folder for rows.csv and figures.", show_default=True)]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes; 0 for one per core.")]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Folder for rows.csv and the report; by default runs/COMMAND.")
]
FirstSeed = Annotated[int, typer.Option("--seed", min=0, help="The first seed.")]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")]
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


def seed_range(first: int, count: int | None, quick: bool) -> list[int]:
    """The seeds that are reported; one with `quick`."""
    return list(range(first, first + (1 if quick else count or 1)))
