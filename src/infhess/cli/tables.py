"""Tables in Markdown, and text files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from infhess._files import atomic

Cells = Sequence[Sequence[str]]


def markdown(rows: Cells) -> str:
    """A Markdown table; the first row is the header."""
    head, *body = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body, ""])


def write(path: Path, text: str) -> Path:
    """Write a text file atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path
