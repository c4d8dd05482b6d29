"""Figures in one style, and small SVG files of them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from infhess._files import atomic

INK, BLUE, ORANGE, GREY = "#222222", "#1f6fb2", "#d9640b", "#8a8a8a"
GREEN, PURPLE = "#0b8f6a", "#a8458c"
FEW_PANELS = 4  # with more of them, fewer ticks
STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **{"svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9, "legend.fontsize": 8},  # text stays text
}


def available() -> bool:
    """Whether figures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def require(*packages: str) -> None:
    """Raise an error that names the remedy if a package is missing."""
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        names = " and ".join(missing).replace("sklearn", "scikit-learn")
        raise ValueError(f"this command needs {names}; install it with: pip install 'infhess[demo]'")


def figure(width: float = 7.0, height: float = 4.2, **subplots: Any) -> tuple[Any, Any]:
    """A figure and its axes in the common style; needs matplotlib."""
    require("matplotlib")
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
