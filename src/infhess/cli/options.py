"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Kept = Annotated[
    Path | None, typer.Option("--out", help="Folder to keep rows.csv and figures in; without it no rows are written.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over; earlier rows are kept under another name.")]


def flag(name: str, what: str) -> Any:
    """An option --NAME, and what its help says."""
    return typer.Option(f"--{name}", help=what)
