"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option("--out", help="Folder for rows.csv and figures.", show_default=True)]
Kept = Annotated[
    Path | None, typer.Option("--out", help="Folder to keep rows.csv and figures in; without it no rows are written.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes; 0 for one per core.")]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Folder for rows.csv and the report; by default runs/COMMAND.")
]
FirstSeed = Annotated[int, typer.Option("--seed", min=0, help="The first seed.")]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the data sets; else $INFHESS_DATA.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over; earlier rows are kept under another name.")]


def flag(name: str, what: str) -> Any:
    """An option --NAME, and what its help says."""
    return typer.Option(f"--{name}", help=what)


Problems = Annotated[list[str] | None, flag("problem", "This one alone; may be repeated.")]
Methods = Annotated[list[str] | None, flag("method", "This one alone; may be repeated.")]


def seed_range(first: int, count: int | None, quick: bool) -> list[int]:
    """The seeds that are reported; one with `quick`."""
    return list(range(first, first + (1 if quick else count or 1)))
