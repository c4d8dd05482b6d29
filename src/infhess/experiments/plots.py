"""Figures, drawn from rows only: panels show the median of the runs, and a band from the lowest to the highest run."""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from infhess._files import atomic
from infhess.harness import Axes, Row, plain

INK, BLUE, ORANGE, GREY = "#222222", "#1f6fb2", "#d9640b", "#8a8a8a"
GREEN, PURPLE = "#0b8f6a", "#a8458c"
POINTS, EDGE, FEW_PANELS = 16, 7, 4  # of a curve, and of a band's edge; with more panels than these, fewer points
Value = Callable[[Row], float]
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **{"svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8},  # text stays text
}


def available() -> bool:
    """Whether figures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def require(*packages: str) -> None:
    """Raise an error that names the remedy if a package is missing; by default checks those for figures and reports."""
    missing = [p for p in packages or ("matplotlib", "jinja2") if importlib.util.find_spec(p) is None]
    if missing:
        names = " and ".join(missing).replace("sklearn", "scikit-learn")
        raise ValueError(f"this command needs {names}; install it with: pip install 'infhess[experiments]'")


def figure(width: float = 7.0, height: float = 4.2, **subplots: Any) -> tuple[Any, Any]:
    """A figure and its axes in the common style; needs matplotlib."""
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
    """Write the figure atomically in the format of each path's suffix; returns the first path."""
    from matplotlib import pyplot, rc_context

    for ax in figure.axes if len(figure.axes) > FEW_PANELS else []:
        ax.minorticks_off()  # they would be half of the file
    for path in paths:
        svg = path.suffix == ".svg"
        with atomic(path) as temporary, rc_context({"svg.hashsalt": path.stem}):  # ids differ between figures of a page
            figure.savefig(temporary, dpi=150, metadata={"Date": None} if svg else None)
            if svg:
                temporary.write_text(compact(temporary.read_text(encoding="utf-8")), encoding="utf-8")
    pyplot.close(figure)
    return paths[0]


def compact(svg: str) -> str:
    """An SVG of a third of the size: coordinates to a tenth of a point, and nothing that browsers do not need."""
    for pattern, short in (
        (r"<metadata>.*?</metadata>|<!--.*?-->", ""),
        (r"'DejaVu Sans'[^;\"]*sans-serif", "sans-serif"),
        (r"; stroke-linecap: (square|butt)|stroke-linejoin: \w+;? ?|; stroke-dashoffset: 0", ""),
        (r'<g id="(?!axes_)[^"]*"', "<g"),
        (r"\n\s*", "\n"),
    ):
        svg = re.sub(pattern, short, svg, flags=re.S)
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", re.sub(r' d="([^"]*)"', _short_path, svg))


def _short_path(d: re.Match[str]) -> str:
    """Repeated line commands without their letter; curves unchanged."""
    path = re.sub(r"-?\d+\.\d+", lambda x: f"{float(x[0]):.1f}".removesuffix(".0"), " ".join(d[1].split()))
    lines = path if re.search("[QC]", path) else re.sub(" ?([MLz]) ?", r"\1", path).replace("L", " ")
    return f' d="{lines}"'


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
