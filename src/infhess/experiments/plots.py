"""Figures, drawn from rows alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infhess._files import atomic
from infhess.harness.rows import Row

INK, BLUE, ORANGE, GREY = "#222222", "#1f6fb2", "#d9640b", "#8a8a8a"
GREEN, PURPLE = "#0b8f6a", "#a8458c"
STYLE: dict[Any, Any] = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",  # text stays text
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
}


def require() -> None:
    """An error that names the remedy where figures and reports cannot be made."""
    for package in ("matplotlib", "jinja2"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"figures and reports need {package}; install it with: pip install 'infhess[experiments]'")


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


def save(figure: Any, path: Path) -> Path:
    """Write the figure in the format of the path's ending, whole or not at all."""
    from matplotlib import pyplot, rc_context

    svg = path.suffix == ".svg"
    with atomic(path) as temporary, rc_context({"svg.hashsalt": path.stem}):  # ids differ between figures of a page
        figure.savefig(temporary, dpi=150, metadata={"Date": None} if svg else None)
    pyplot.close(figure)
    return path


def demo(rows: Sequence[Row], path: Path, best: str, online: str) -> Path:
    """The gap against data points read: all rates of sgd, its best one, and infhess."""
    fig, ax = figure()
    for method in dict.fromkeys(r.method for r in rows):
        x, y = zip(*((r.data_points, max(r.loss, 1e-12)) for r in rows if r.method == method))
        colour, label = {best: (ORANGE, f"{best}, the best of nine"), online: (BLUE, online)}.get(method, (GREY, None))
        ax.plot(x, y, color=colour, label=label, linewidth=2 if label else 0.8, alpha=1.0 if label else 0.6)
    ax.set(xscale="log", yscale="log", ylim=(1e-6, 2))
    ax.set(xlabel="data points read", ylabel="gap to the optimum (L − L*)/(L₀ − L*)")
    ax.set_title(f"Logistic regression, {rows[0].problem}", loc="left")
    ax.legend(frameon=False)
    return save(fig, path)


def spectrum(rows: Sequence[Row], path: Path) -> Path:
    """Eigenvalues with their 95 % intervals."""
    values, low, high = ([r.metric for r in rows if r.method == what] for what in ("value", "low", "high"))
    index = range(1, len(values) + 1)
    errors = [[max(0.0, v - end) for v, end in zip(values, low)], [max(0.0, end - v) for v, end in zip(values, high)]]
    fig, ax = figure()
    ax.errorbar(index, values, yerr=errors, fmt="o", color=BLUE, capsize=4, label="95 % interval")
    ax.set(xlabel="eigenvalue number", ylabel="curvature", xticks=list(index))
    if min(low) > 0:
        ax.set_yscale("log")
    ax.set_title(f"Top curvature of {rows[0].problem.rsplit('/', 1)[0]}", loc="left", fontsize=10)
    ax.legend(frameon=False)
    return save(fig, path)
