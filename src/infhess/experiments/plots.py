"""Figures, drawn from rows alone: in panels a thin line per run, a thick one for their median."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infhess._files import atomic
from infhess.harness.rows import Row

INK, BLUE, ORANGE, GREY = "#222222", "#1f6fb2", "#d9640b", "#8a8a8a"
GREEN, PURPLE = "#0b8f6a", "#a8458c"
Value = Callable[[Row], float]
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **{"svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8},  # text stays text
}


def available() -> bool:
    """Whether figures can be made."""
    return importlib.util.find_spec("matplotlib") is not None


def require(*packages: str) -> None:
    """An error that names the remedy where a package is not installed; by default those of figures and reports."""
    missing = [p for p in packages or ("matplotlib", "jinja2") if importlib.util.find_spec(p) is None]
    if missing:
        names = " and ".join(missing).replace("sklearn", "scikit-learn")
        raise ValueError(f"this command needs {names}; install it with: pip install 'infhess[experiments]'")


def figure(width: float = 7.0, height: float = 4.2, **subplots: Any) -> tuple[Any, Any]:
    """A figure and its axes in the house style; needs matplotlib."""
    require()
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(STYLE)
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained", **subplots)
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    return figure, axes


def save(figure: Any, *paths: Path) -> Path:
    """Write the figure in the format of each path's ending, whole or not at all; returns the first."""
    from matplotlib import pyplot, rc_context

    for path in paths:
        svg = path.suffix == ".svg"
        with atomic(path) as temporary, rc_context({"svg.hashsalt": path.stem}):  # ids differ between figures of a page
            figure.savefig(temporary, dpi=150, metadata={"Date": None} if svg else None)
    pyplot.close(figure)
    return paths[0]


@dataclass(frozen=True)
class Line:
    """A method's runs in a panel."""

    label: str
    colour: str
    runs: Sequence[Sequence[Row]]
    dashes: str = "-"


def draw(ax: Any, line: Line, y: Value, x: Value = lambda row: row.data_points) -> None:
    """All runs faintly, their median in full."""
    runs = [run for run in line.runs if run]
    if not runs:
        return
    for run in runs if len(runs) > 1 else []:
        ax.plot([x(r) for r in run], [y(r) for r in run], color=line.colour, linewidth=0.6, alpha=0.35)
    xs, ys = middle(runs, x, y)
    ax.plot(xs, ys, line.dashes, color=line.colour, linewidth=1.6, label=line.label)


def middle(runs: Sequence[Sequence[Row]], x: Value, y: Value) -> tuple[list[float], list[float]]:
    """The median over runs of y at equal x, as far as most of them go, between rows by interpolation."""
    import numpy as np

    if len(runs) == 1:
        return [x(r) for r in runs[0]], [y(r) for r in runs[0]]
    at = sorted({x(r) for run in runs for r in run})
    low, high = (sorted(x(run[i]) for run in runs)[len(runs) // 2] for i in (0, -1))
    at = [t for t in at if low <= t <= high]
    values = [
        np.interp(at, [x(r) for r in run], np.clip([y(r) for r in run], -1e300, 1e300), left=np.nan, right=np.nan)
        for run in runs
    ]
    return at, np.nanmedian(values, axis=0).tolist() if at else []


def grid(rows: int, columns: int, height: float = 2.9, *, share: bool = True) -> tuple[Any, Any]:
    """A figure of panels; they share x by column and y by row unless told otherwise."""
    share_x = "col" if share else False
    size = 2.9 * columns + 0.6, height * rows + 0.5
    return figure(*size, nrows=rows, ncols=columns, sharex=share_x, sharey="row", squeeze=False)


def save_panels(fig: Any, axes: Any, path: Path, columns: int = 3) -> Path:
    """With one legend below all panels, each method once."""
    found: dict[str, Any] = {}
    for ax in axes.flat:
        found |= dict(zip(*reversed(ax.get_legend_handles_labels())))
    fig.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False)
    return save(fig, path)
