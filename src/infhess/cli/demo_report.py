"""What the demo shows: a table for each of its parts, and one figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infhess.cli import plots
from infhess.cli.demo import BATCH, CONVEX, INFHESS, NET, SHARPNESS, TOP, net_problem
from infhess.cli.rows import Row
from infhess.cli.tables import Cells, markdown, write

GAPS = (1e-1, 1e-2, 1e-3)


def of(found: Sequence[Row], problem: str) -> dict[str, list[Row]]:
    """Curves of a problem by method; what earlier versions kept beside them, such as "Adam, rate 1: accuracy", is left out."""
    curves: dict[str, list[Row]] = {}
    for row in found:
        if row.problem == problem and ": " not in row.method:
            curves.setdefault(row.method, []).append(row)
    return curves


def best(curves: dict[str, list[Row]]) -> str:
    """The method with a learning rate that ends lowest."""
    ends = {method: run[-1].loss for method, run in curves.items() if method != INFHESS}
    return min(ends, key=lambda method: ends[method] if ends[method] == ends[method] else float("inf"))


def reached(runs: Sequence[Sequence[Row]]) -> list[int | None]:
    """Data points read until the gap first fell below each of GAPS, by the best run for that gap."""
    return [min((r.data_points for run in runs for r in run if r.loss < gap), default=None) for gap in GAPS]


def intervals(found: Sequence[Row]) -> dict[str, list[float]]:
    """The eigenvalues: value, low, high, exact."""
    rows = [r for r in found if r.problem.startswith(SHARPNESS)]
    return {name: [r.metric for r in rows if r.method == name] for name in ("value", "low", "high", "exact")}


def tables(found: Sequence[Row]) -> list[tuple[str, Cells, str]]:
    """For each part: its title, a table, and a sentence on what it shows."""
    return [_convex_table(of(found, CONVEX)), _net_table(of(found, NET)), _sharpness_table(found)]


def _convex_table(curves: dict[str, list[Row]]) -> tuple[str, Cells, str]:
    others = [run for method, run in curves.items() if method != INFHESS]
    lines = [["method", *(f"to {gap:g}" for gap in GAPS), "gap at the end"]]
    for title, runs, end in (
        (f"sgd, best of {len(others)} rates", others, curves[best(curves)]),
        (INFHESS, [curves[INFHESS]], curves[INFHESS]),
    ):
        shown = ["never" if points is None else f"{points:,}" for points in reached(runs)]
        lines.append([title, *shown, f"{end[-1].loss:.1e}"])
    mine, theirs = (reached(runs)[-1] for runs in ([curves[INFHESS]], others))
    title, there = f"A convex problem: {CONVEX}, data points read to a gap", f"within {GAPS[-1]:g} of the optimum"
    if mine is None:
        return title, lines, f"infhess did not come {there}."
    beside = f"sgd, with the best of {len(others)} rates, {f'after {theirs:,}' if theirs else 'not at all'}"
    return title, lines, f"infhess is {there} after {mine:,} data points; {beside}."


def _net_table(curves: dict[str, list[Row]]) -> tuple[str, Cells, str]:
    lines = [["method", "training loss at the end", "test loss"]]
    lines += [[method, f"{run[-1].loss:.3g}", f"{run[-1].metric:.3g}"] for method, run in curves.items()]
    mine, theirs = (curves[m][-1].loss for m in (INFHESS, best(curves)))
    place = "below" if mine < theirs else "above"
    seen = f"With nothing to set, infhess ends {place} the best of {len(curves) - 1} learning rates of Adam."
    return f"{NET[0].upper()}{NET[1:]}: loss after the same number of gradients", lines, seen


def _sharpness_table(found: Sequence[Row]) -> tuple[str, Cells, str]:
    v = intervals(found)
    lines = [["eigenvalue", "from mini-batches", "95 % interval", "exact"]]
    for i, (value, low, high, exact) in enumerate(zip(v["value"], v["low"], v["high"], v["exact"]), 1):
        lines.append([str(i), f"{value:.3g}", f"{low:.3g} … {high:.3g}", f"{exact:.3g}"])
    seen = f"{inside(v)} of {len(lines) - 1} intervals hold the exact eigenvalue of the Hessian over all the data."
    return f"{SHARPNESS[0].upper()}{SHARPNESS[1:]}: the largest eigenvalues of its Hessian", lines, seen


NEXT = """What to run next:
  infhess spectrum infhess.example:small_net    sharpness of a net with error bars; then MODULE:FUNCTION of your own
In your own code:
  opt = infhess.RateFree(model.parameters())    a net, with no learning rate to set
  infhess.minimize(loss, params, batches)       a convex problem, in one call"""


def summary(found: Sequence[Row], path: Path) -> Path:
    """The tables in Markdown."""
    parts = [f"**{title}**\n\n{markdown(cells)}\n{seen}\n" for title, cells, seen in tables(found)]
    return write(path, "\n".join(parts))


def figure(found: Sequence[Row], *paths: Path) -> Path:
    """Three panels; the same drawing in the format of each path."""
    fig, axes = plots.figure(11.0, 3.7, ncols=3)
    _curves(axes[0], of(found, CONVEX), lambda r: r.data_points, floor=1e-12)
    axes[0].set(xscale="log", yscale="log", ylim=(1e-6, 2), xlabel="data points read", ylabel="gap to the optimum")
    _curves(axes[1], of(found, NET), lambda r: r.data_points / BATCH)
    axes[1].set(xscale="log", yscale="log", ylim=(0.08, 4), xlabel="steps", ylabel="training loss")
    _bars(axes[2], intervals(found))
    for ax, title in zip(axes, headlines(found)):
        ax.set_title(title, loc="left")
        ax.legend(frameon=False)
    return plots.save(fig, *paths)


def headlines(found: Sequence[Row]) -> list[str]:
    """A headline for each panel: what it shows, and on which problem."""
    convex, net = of(found, CONVEX), of(found, NET)
    factor = convex[best(convex)][-1].loss / convex[INFHESS][-1].loss
    ahead = net[INFHESS][-1].loss < net[best(net)][-1].loss
    weights = sum(p.numel() for p in net_problem().model().parameters())
    return [
        f"Convex: {factor:.3g} times closer than sgd at its best rate\n{CONVEX}, batches of {BATCH}",
        f"Net: {'a lower' if ahead else 'no lower'} loss than Adam at its best rate\n"
        f"ten digits, {weights:,} weights, batches of {BATCH}",
        f"Sharpness: {inside(intervals(found))} of {TOP} intervals hold the truth\n"
        "top eigenvalues of the Hessian of that net",
    ]


def inside(v: dict[str, list[float]]) -> int:
    """Number of intervals that contain the exact value."""
    return sum(low <= exact <= high for low, exact, high in zip(v["low"], v["exact"], v["high"]))


def _curves(ax: Any, curves: dict[str, list[Row]], x: Callable[[Row], float], floor: float = 0.0) -> None:
    """All learning rates faintly, the best of them and infhess in full colour."""
    first = best(curves)
    known = {first: (plots.ORANGE, f"{first}, the best of {len(curves) - 1}"), INFHESS: (plots.BLUE, INFHESS)}
    others = [method for method in curves if method not in known]
    known |= {others[0]: (plots.GREY, f"{others[0].split(',')[0]}, the other rates")}
    for method, run in curves.items():
        colour, label = known.get(method, (plots.GREY, None))
        style = {"linewidth": 0.8, "alpha": 0.6} if method in others else {"linewidth": 2}
        ax.plot([x(r) for r in run], [max(r.loss, floor) for r in run], color=colour, label=label, **style)


def _bars(ax: Any, v: dict[str, list[float]]) -> None:
    places = range(1, len(v["value"]) + 1)
    bars = [[m - lo for m, lo in zip(v["value"], v["low"])], [hi - m for m, hi in zip(v["value"], v["high"])]]
    label = "from mini-batches, 95 % interval"
    ax.errorbar(places, v["value"], bars, fmt="o", color=plots.BLUE, capsize=4, label=label)
    ax.plot(places, v["exact"], "x", color=plots.ORANGE, markersize=8, label="exact")
    ax.set(xlabel="eigenvalue of the Hessian", ylabel="curvature", ylim=(0, None), xticks=list(places))
