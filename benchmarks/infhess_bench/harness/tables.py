"""Tables in Markdown, and targets: measurements next to their goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infhess.cli.tables import Cells, write
from infhess.cli.tables import markdown as as_markdown

__all__ = ["Cells", "Target", "at_least", "at_most", "markdown", "plain", "target_cells", "write", "written"]

# Names of methods for readers, by their names in rows; longer names first.
SHOWN = {
    "infhess, online momentum": "infhess around momentum",
    "infhess, online Adam": "infhess around Adam",
    "infhess, online sgd": "infhess around sgd",
    "infhess, online": "infhess, no learning rate",
    "infhess, update": "infhess, estimates now and then",
    "paper, step length alone": "the paper's step length alone",
    "paper, rate of sgd": "the paper's method, sgd's rate",
    "paper, rate tuned": "the paper's method, tuned rate",
    "paper, tuned": "the paper's method, tuned",
    "avg-inv": "averaged inverses",
}


def plain(text: str) -> str:
    """A text with names of methods that a newcomer understands."""
    for name, shown in SHOWN.items():
        text = text.replace(name, shown)
    return text


def markdown(rows: Cells) -> str:
    """A Markdown table with such names; the first row is the header."""
    return as_markdown([[plain(cell) for cell in row] for row in rows])


def written(folder: Path, **tables: Cells) -> str:
    """Write each table as NAME.md; return all of them."""
    texts = {name: markdown(cells) for name, cells in tables.items()}
    for name, text in texts.items():
        write(folder / f"{name}.md", text)
    return "\n".join(texts.values())


@dataclass(frozen=True)
class Target:
    """A measured number, and its goal."""

    what: str
    measured: float
    wanted: str
    met: bool


def at_most(what: str, measured: float, bound: float) -> Target:
    """A number that should not be above a bound."""
    return Target(what, measured, f"≤ {bound:g}", measured <= bound)


def at_least(what: str, measured: float, bound: float) -> Target:
    """A number that should not be below a bound."""
    return Target(what, measured, f"≥ {bound:g}", measured >= bound)


def target_cells(found: Sequence[Target]) -> Cells:
    """Targets as cells of a table."""
    lines = [[t.what, f"{t.measured:.3g}", t.wanted, "yes" if t.met else "no"] for t in found]
    return [["what", "measured", "target", "met"], *lines]
