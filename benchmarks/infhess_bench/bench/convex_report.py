"""The results of the convex bench: who is ahead by how much, the targets, tables, figures and a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from infhess._version import __version__
from infhess_bench.bench.convex_baselines import ADAM, METHODS, ONLINE, PAPER, SKETCHY, SKETCHY32, UPDATED
from infhess_bench.bench.convex_bench import BATCHES, COST, EXPERIMENT, LIBRARY, STABILITY, Axes
from infhess_bench.experiments import page, plots
from infhess_bench.experiments.page import Figure, Page
from infhess_bench.experiments.plots import Line
from infhess_bench.harness import EXACT, GAPS, START, Row, missing, shown
from infhess_bench.harness.tables import Cells, Target, at_least, at_most, markdown, target_cells

AXES = ("data points", "work", "seconds")
RIVALS = tuple(f"{name}, tuned" for name in (PAPER, SKETCHY, SKETCHY32, ADAM))
COLOURS = {
    ONLINE: (plots.BLUE, "-"), UPDATED: (plots.INK, "-"),
    RIVALS[0]: (plots.PURPLE, "-"), RIVALS[1]: (plots.GREEN, "-"), RIVALS[2]: (plots.GREEN, "--"),
    RIVALS[3]: (plots.ORANGE, "-"), "sgd, tuned": (plots.GREY, "-"), "schedule-free sgd, tuned": (plots.GREY, "--"),
    "Adam, cosine, tuned": (plots.ORANGE, "--"), "PSGD, low rank 10, tuned": (plots.GREY, ":"),
    "L-BFGS, full batch": (plots.GREY, "-."),
}  # fmt: skip
# Goals in data points to a gap.
AIMS = {
    ("sarcos-map", 256, 1e-2, ONLINE): 1.3e4, ("sarcos-map", 256, 1e-2, UPDATED): 2.6e4,
    ("sarcos-map", 256, 1e-3, ONLINE): 4e4, ("sarcos-map", 256, 1e-3, UPDATED): 8e4,
    ("sarcos-map", 32, 1e-2, ONLINE): 7e3, ("sarcos-map", 32, 1e-2, UPDATED): 1.4e4,
    ("sarcos-map", 32, 1e-3, ONLINE): 3e4, ("sarcos-map", 32, 1e-3, UPDATED): 6e4,
    ("sarcos-nat", 256, 1e-2, ONLINE): 2.6e4, ("sarcos-nat", 256, 1e-2, UPDATED): 5.2e4,
    ("mnist-3v5", 256, 1e-2, ONLINE): 5e4,
}  # fmt: skip


def report(rows: Sequence[Row], seeds: Sequence[int], folder: Path) -> str:
    """summary.md, targets.md, table.md, figures and report.html; returns the first two."""
    kept = [r for r in rows if r.seed in seeds or r.method in (EXACT, START, COST)]
    axes = Axes(kept)
    aims, lead = target_cells(targets(axes, kept)), ahead(axes, GAPS)
    whole = Page(
        "Convex problems, head to head",
        f"infhess {__version__} and what users would pick instead: infhess bench convex --seed {seeds[0]}",
        (),
        [_figure(axes, batch, folder) for batch in BATCHES],
        notes(axes, seeds),
        [("Ahead by how much", lead), ("Targets", aims), *everything(axes)],
    )
    whole.write(folder, summary=ahead(axes, GAPS[1:3]), targets=aims)
    return f"{markdown(lead)}\n{markdown(aims)}"


def ahead(axes: Axes, gaps: Sequence[float]) -> Cells:
    """infhess, and the best baseline in its best setting divided by infhess, for each axis and gap."""
    head = ["problem, batch", "gap", "infhess: data points"]
    lines = [[*head, "best baseline / infhess: data points", "work", "seconds"]]
    for name, batch, gap in product(axes.problems, BATCHES, gaps):
        mine = shown(axes.to("data points", name, ONLINE, batch, gap))
        lines.append([f"{name}, {batch}", f"{gap:.0e}", mine, *(_ratio(axes, a, name, batch, gap) for a in AXES)])
    return lines


def _ratio(axes: Axes, axis: str, name: str, batch: int, gap: float) -> str:
    mine = axes.to(axis, name, ONLINE, batch, gap)
    others = {m: batch for m in axes.methods(name, batch) if not m.startswith("infhess")}
    best, theirs = axes.cheapest(axis, name, others | (dict.fromkeys(LIBRARY, 0) if axis == "seconds" else {}), gap)
    if theirs == math.inf:
        return "no baseline" if mine < math.inf else "nobody"
    return f"{theirs / mine:.2f} ({best.removesuffix(', tuned')})" if mine < math.inf else f"0 ({best})"


def targets(axes: Axes, rows: Sequence[Row]) -> list[Target]:
    """The goals, and what was measured."""
    found = []
    for (name, batch, gap, method), bound in AIMS.items():
        measured = axes.to("data points", name, method, batch, gap)
        if measured == measured:
            found.append(at_most(f"{name}, batch {batch}: {method}, points to {gap:.0e}", measured, bound))
    runs = [r for r in rows if r.experiment == STABILITY]
    if runs:
        lost = sum(not r.loss <= r.metric for r in runs)
        found.append(at_most(f"diverged, in {len(runs)} runs at batch 8 to 512", lost, max(1, len(runs) // 100)))
    return found + _rivals(axes)


def _rivals(axes: Axes) -> list[Target]:
    """Work and seconds at batch 256 to gaps from 1e-2 on: the best of the paper, SketchySGD and Adam, tuned, over infhess."""
    found = []
    for axis, name, gap in product(("work", "seconds"), axes.problems, GAPS[1:]):
        mine = axes.to(axis, name, ONLINE, 256, gap)
        best, theirs = axes.cheapest(axis, name, dict.fromkeys(RIVALS, 256), gap)
        if mine < math.inf and best in RIVALS:
            what = f"{name}, batch 256, {axis} to {gap:.0e}: best of paper, SketchySGD, Adam / infhess"
            found.append(at_least(what, theirs / mine, 1))
    return found


def everything(axes: Axes) -> list[tuple[str, Cells]]:
    """One table per problem and batch size."""
    head = ["method", *(f"points to {gap:.0e}" for gap in GAPS), *(f"work to {g:.0e}" for g in GAPS[1:3])]
    head += [*(f"seconds to {g:.0e}" for g in GAPS[1:3]), "gap at the end"]
    found: list[tuple[str, Cells]] = []
    for name, batch in product(axes.problems, BATCHES):
        rows = [[m, *_line(axes, name, m, batch)] for m in axes.methods(name, batch)]
        if batch == BATCHES[-1]:
            rows += [[m, *_line(axes, name, m, 0)] for m in LIBRARY if axes.runs(name, m, 0)]
        found.append((f"{name}, batch {batch}", [head, *rows]))
    return found


def _line(axes: Axes, name: str, method: str, batch: int) -> list[str]:
    cells = [shown(axes.to("data points", name, method, batch, gap)) for gap in GAPS]
    cells += [shown(axes.to("work", name, method, batch, gap)) for gap in GAPS[1:3]]
    seconds = (axes.to("seconds", name, method, batch, gap) for gap in GAPS[1:3])
    cells += [f"{s:.2f}" if s < math.inf else "never" for s in seconds]
    return [*cells, f"{axes.final(name, method, batch):.1e}"]


def _figure(axes: Axes, batch: int, folder: Path) -> Figure:
    def lines(name: str) -> list[Line]:
        return [Line(m, c, axes.runs(name, m, batch), d) for m, (c, d) in COLOURS.items()]

    panels = plots.gap_panels(axes, AXES, lines, height=2.6, lowest=3e-5)
    path = plots.save_panels(*panels, folder / f"convex-{batch}.svg", columns=4)
    caption = f"Gap to the optimum at batch {batch}, against data points read, work and seconds; bands span the seeds."
    return Figure(path, caption)


def notes(axes: Axes, seeds: Sequence[int]) -> list[str]:
    """How it was done, and what the figures do not show."""
    values = {"costs": axes.costs, "missing": missing(METHODS), "experiment": EXPERIMENT, "stability": STABILITY}
    return page.notes("bench-convex", seeds=seeds, **values)
