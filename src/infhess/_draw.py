"""Pictures and tables of results, made where a user asks for them: matplotlib and pandas are imported here and late."""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

INK, BLUE, ORANGE, GREY = "#222222", "#1f6fb2", "#d9640b", "#8a8a8a"
COLOURS = (BLUE, ORANGE, "#0b8f6a", "#a8458c", GREY)


def needed(module: str, what: str, remedy: str) -> Any:
    """A module that is not among the requirements, or an error that names the remedy."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{what} needs {module.split('.')[0]}; install it with: {remedy}") from error


def axes(ax: Any = None) -> Any:
    """The axes given, or new ones, without a frame above and to the right."""
    if ax is not None:
        return ax
    pyplot = needed("matplotlib.pyplot", "plot", "pip install 'infhess[experiments]'")
    _, ax = pyplot.subplots(figsize=(6.0, 3.8), layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    return ax


def bars(
    ax: Any, values: Sequence[float], low: Sequence[float], high: Sequence[float], label: str, colour: str = BLUE
) -> Any:
    """Numbered values with their intervals; a logarithmic scale where all are positive."""
    below = [max(0.0, v - a) for v, a in zip(values, low)]
    above = [max(0.0, b - v) for v, b in zip(values, high)]
    index = range(1, len(values) + 1)
    ax.errorbar(index, values, yerr=[below, above], fmt="o", color=colour, capsize=4, label=label)
    if len(values) <= 20:
        ax.set_xticks(list(index))
    if min(low, default=0.0) > 0:
        ax.set_yscale("log")
    ax.legend(frameon=False)
    return ax


def band(
    ax: Any, x: Sequence[float], middle: Sequence[float], low: Sequence[float], high: Sequence[float], label: str,
    colour: str = BLUE,
) -> Any:  # fmt: skip
    """A line within its intervals."""
    ax.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
    ax.plot(x, middle, "o-", color=colour, markersize=3, linewidth=1.4, label=label)
    return ax


def frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """A DataFrame of these columns; needs pandas."""
    return needed("pandas", "to_pandas", "pip install pandas").DataFrame(dict(columns))


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table with a caption, for notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    caption = f"<caption>{html.escape(caption)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def short(values: Sequence[float], most: int = 5) -> str:
    """A few numbers in a line: 3.2, 1.1, 0.4, …"""
    shown = [f"{v:.4g}" for v in values[:most]]
    return ", ".join(shown + (["…"] if len(values) > most else []))
