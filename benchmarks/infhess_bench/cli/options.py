"""Options that these commands share, beside those of every command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from infhess.cli.options import flag

Out = Annotated[Path, typer.Option("--out", help="Folder for rows.csv and figures.", show_default=True)]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes; 0 for one per core.")]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Folder for rows.csv and the report; by default runs/COMMAND.")
]
FirstSeed = Annotated[int, typer.Option("--seed", min=0, help="The first seed.")]
Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder of the data sets; else $INFHESS_DATA.")]
Problems = Annotated[list[str] | None, flag("problem", "This one alone; may be repeated.")]
Methods = Annotated[list[str] | None, flag("method", "This one alone; may be repeated.")]


def seed_range(first: int, count: int | None, quick: bool) -> list[int]:
    """The seeds that are reported; one with `quick`."""
    return list(range(first, first + (1 if quick else count or 1)))


def one_kind(given: Mapping[str, bool]) -> str:
    """The requested comparison; "" if there is none."""
    kind, *more = [name for name, chosen in given.items() if chosen] or [""]
    if more:
        raise ValueError(f"expected at most one of --{', --'.join(given)}; got --{kind} and --{more[0]}")
    return kind
