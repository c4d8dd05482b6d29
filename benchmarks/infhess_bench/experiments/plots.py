"""Figures, drawn from rows only: panels show the median of the runs, and a band from the lowest to the highest run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infhess.cli.plots import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, figure, save
from infhess_bench.harness import Axes, Row, plain

__all__ = [
    "BLUE", "GREEN", "GREY", "INK", "ORANGE", "PURPLE", "figure", "save",
    "Line", "Value", "draw", "few", "gap_panels", "grid", "middle", "save_panels", "together",
]  # fmt: skip

POINTS, EDGE = 16, 7  # of a curve, and of a band's edge
Value = Callable[[Row], float]


def few(xs: Sequence[float], ys: Sequence[float], most: int) -> tuple[list[float], list[float]]:
    """At most this many points of a curve, evenly along its length in log x, and its ends."""
    if len(xs) <= most:
        return list(xs), list(ys)
    at = [math.log(max(x, 1e-12)) for x in xs]
    step = max((at[-1] - at[0]) / (most - 1), 1e-12)
    kept = [0]
    for i in range(1, len(xs) - 1):
        if at[i] - at[kept[-1]] >= step:
            kept.append(i)
    kept.append(len(xs) - 1)
    return [xs[i] for i in kept], [ys[i] for i in kept]


@dataclass(frozen=True)
class Line:
    """A method's runs in a panel."""

    label: str
    colour: str
    runs: Sequence[Sequence[Row]]
    dashes: str = "-"


def draw(ax: Any, line: Line, y: Value, x: Value = lambda row: row.data_points) -> None:
    """The median of the runs, and a faint band from the lowest to the highest run."""
    runs = [run for run in line.runs if run]
    if not runs:
        return
    at, values = together(runs, x, y)
    if len(runs) > 1 and at:
        import numpy as np

        (where, low), (_, high) = (few(at, edge(values, axis=0).tolist(), EDGE) for edge in (np.nanmin, np.nanmax))
        ax.fill_between(where, low, high, color=line.colour, alpha=0.12, linewidth=0)
    xs, ys = few(*middle(runs, x, y), POINTS)
    ax.plot(xs, ys, line.dashes, color=line.colour, linewidth=1.6, label=plain(line.label))


def middle(runs: Sequence[Sequence[Row]], x: Value, y: Value) -> tuple[list[float], list[float]]:
    """The median over runs of y at equal x, as far as most of them go, interpolated between rows."""
    import numpy as np

    if len(runs) == 1:
        return [x(r) for r in runs[0]], [y(r) for r in runs[0]]
    at, values = together(runs, x, y)
    return at, np.nanmedian(values, axis=0).tolist() if at else []


def together(runs: Sequence[Sequence[Row]], x: Value, y: Value) -> tuple[list[float], Any]:
    """All x from where most runs begin to where most end, and y of each run there; NaN where a run has none."""
    import numpy as np

    at = sorted({x(r) for run in runs for r in run})
    low, high = (sorted(x(run[i]) for run in runs)[len(runs) // 2] for i in (0, -1))
    at = [t for t in at if low <= t <= high]
    values = [
        np.interp(at, [x(r) for r in run], np.clip([y(r) for r in run], -1e300, 1e300), left=np.nan, right=np.nan)
        for run in runs
    ]
    return at, np.array(values)


def grid(rows: int, columns: int, height: float = 2.9, *, share: bool = True) -> tuple[Any, Any]:
    """A figure of panels; by default they share x by column and y by row."""
    share_x = "col" if share else False
    size = 2.9 * columns + 0.6, height * rows + 0.5
    return figure(*size, nrows=rows, ncols=columns, sharex=share_x, sharey="row", squeeze=False)


def gap_panels(
    axes: Axes, names: Sequence[str], lines: Callable[[str], Sequence[Line]], *, height: float, lowest: float
) -> tuple[Any, Any]:
    """The gap to the optimum against each axis, with a row of panels per problem; `lines` maps a problem to its lines."""
    fig, panels = grid(len(axes.problems), len(names), height, share=False)
    for row, problem in zip(panels, axes.problems):
        for ax, axis in zip(row, names):
            for line in lines(problem):
                draw(ax, line, lambda r: min(axes.gap(r), 10.0), partial(axes.value, axis))
            ax.set(xscale="log", yscale="log", ylim=(lowest, 2), xlabel=axis)
        row[0].set_ylabel(f"{problem}: gap")
    return fig, panels


def save_panels(fig: Any, axes: Any, path: Path, columns: int = 3) -> Path:
    """Save with one legend below all panels, each method once."""
    found: dict[str, Any] = {}
    for ax in axes.flat:
        found |= dict(zip(*reversed(ax.get_legend_handles_labels())))
    fig.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False)
    return save(fig, path)
