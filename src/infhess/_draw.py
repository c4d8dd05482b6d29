"""Plots and tables of results, made on request: matplotlib and pandas are imported only here, and late."""

from __future__ import annotations

import html
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

INK, BLUE, ORANGE, GREY = "#222222", "#1f6fb2", "#d9640b", "#8a8a8a"
COLOURS = (BLUE, ORANGE, "#0b8f6a", "#a8458c", GREY)
ROWS = 100  # of a table in a notebook, at most


def needed(module: str, what: str, remedy: str) -> Any:
    """Import an optional module, or raise an error that names the remedy."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{what} needs {module.split('.')[0]}; install it with: {remedy}") from error


def axes(ax: Any = None) -> Any:
    """The given axes, or new ones, without a frame above and to the right."""
    if ax is not None:
        return ax
    pyplot = needed("matplotlib.pyplot", "plot", "pip install 'infhess[demo]'")
    _, ax = pyplot.subplots(figsize=(6.0, 3.8), layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    return ax


def bars(
    ax: Any, values: Sequence[float], low: Sequence[float], high: Sequence[float], label: str, colour: str = BLUE,
    names: Sequence[Any] | None = None,
) -> Any:  # fmt: skip
    """Values with their intervals, numbered or labelled with their names; on a logarithmic scale if all are positive."""
    below = [max(0.0, v - a) for v, a in zip(values, low)]
    above = [max(0.0, b - v) for v, b in zip(values, high)]
    names = range(1, len(values) + 1) if names is None else names
    place = {name: i for i, name in enumerate(dict.fromkeys(names), 1)}
    ax.errorbar([place[n] for n in names], values, yerr=[below, above], fmt="o", color=colour, capsize=4, label=label)
    if len(place) <= 20:
        ax.set_xticks(list(place.values()), [str(name) for name in place])
    if min(low, default=0.0) > 0:
        ax.set_yscale("log")
    ax.legend(frameon=False)
    return ax


def band(
    ax: Any, x: Sequence[float], middle: Sequence[float], low: Sequence[float], high: Sequence[float], label: str,
    colour: str = BLUE,
) -> Any:  # fmt: skip
    """A line with a band of intervals."""
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


class Rows(ABC):
    """A result made of rows, values with 95 % intervals: a table in a notebook, a DataFrame, a plot."""

    @abstractmethod
    def _columns(self) -> dict[str, list[Any]]:
        """`value`, `low`, `high` and more by name; if there are several rows, the first column names or numbers them."""

    def to_pandas(self) -> Any:
        """A DataFrame with one row per value, and its 95 % interval; needs pandas."""
        return frame(self._columns())

    def plot(self, ax: Any = None) -> Any:
        """Plot the values with their 95 % intervals; needs matplotlib. Returns the axes."""
        return picture(self._columns(), ax, "95 % interval")

    def _repr_html_(self) -> str:
        columns = self._columns()
        rows = [[_cell(v) for v in row] for row in islice(zip(*columns.values()), ROWS)]
        return table(repr(self), list(columns), rows)


def picture(columns: Mapping[str, list[Any]], ax: Any, label: str) -> Any:
    """Rows as points with intervals, labelled by the first column."""
    ax, (what, names) = axes(ax), next(iter(columns.items()))
    alone, value = what == "value", columns["value"]
    bars(ax, value, columns.get("low", value), columns.get("high", value), label, names=None if alone else names)
    numbered = all(isinstance(name, int) for name in names)
    ax.set(xlabel="" if alone else f"{what} number" if numbered else what, ylabel="curvature")
    return ax


def _cell(v: Any) -> str:
    return f"{v:.4g}" if isinstance(v, float) else "yes" if v is True else "no" if v is False else str(v)


def short(values: Sequence[float], most: int = 5) -> str:
    """A few numbers in one line: 3.2, 1.1, 0.4, …"""
    shown = [f"{v:.4g}" for v in values[:most]]
    return ", ".join(shown + (["…"] if len(values) > most else []))
