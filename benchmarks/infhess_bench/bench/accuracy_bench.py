"""Convex problems to eight digits: `minimize` and the usual alternatives, in passes, work and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import torch

from infhess._version import __version__
from infhess_bench import harness
from infhess_bench.bench.accuracy_baselines import DENSE_NEWTON, FIRST_ORDER, GENERAL, infhess, solvers
from infhess_bench.bench.recorder import MINIMIZE, EnoughError, Recorder
from infhess_bench.experiments import page, plots
from infhess_bench.experiments.page import Figure, Page
from infhess_bench.experiments.plots import Line
from infhess_bench.harness import EXACT, START, Cells, Job, Row, Target, at_most, target_cells
from infhess_bench.harness.curves import solved_rows
from infhess_bench.problems import ConvexProblem
from infhess_bench.problems.convex_problems import CONVEX
from infhess_bench.problems.unseen_problems import UNSEEN

EXPERIMENT = "bench-convex-accuracy"
KNOWN = ("sarcos-map", "sarcos-nat", "mnist-3v5", "digits", "breast-cancer")
NEW = tuple(name for name in UNSEEN if not name.endswith("/quick"))
QUICK = ("digits", "breast-cancer", "counts")
BATCHES, GAPS, AXES = (32, 256), (1e-3, 1e-6, 1e-8), ("passes", "work", "seconds")
# Size of the data, in numbers, above which `minimize` should be the fastest method except for dense Newton.
LARGE = 1e7


@lru_cache(maxsize=1)
def accuracy_problem(name: str) -> ConvexProblem:
    """A problem by name, cached for the next run in this process."""
    return (CONVEX | UNSEEN)[name]()


def optima(names: Sequence[str]) -> Iterator[Job]:
    """Jobs for the exact solutions."""
    return (Job(Row(EXPERIMENT, name, EXACT), optimum_rows) for name in names)


def optimum_rows(template: Row) -> list[Row]:
    """The solution by Newton's method in double precision, and the start; the metric is how many numbers the data holds."""
    problem = accuracy_problem(template.problem)
    return solved_rows(replace(template, metric=problem.data[0].numel()), problem)


def jobs(rows: Sequence[Row], name: str, seeds: Sequence[int]) -> Iterator[Job]:
    """`minimize` at two batch sizes and over seeds."""
    for batch, seed in product(BATCHES, seeds):
        yield Job(Row(EXPERIMENT, name, MINIMIZE, seed, batch), solved, _ends(rows, name))


def peers(rows: Sequence[Row], name: str, seeds: Sequence[int]) -> Iterator[Job]:
    """Every other method, on the first seed."""
    for method in solvers(accuracy_problem(name)):
        yield Job(Row(EXPERIMENT, name, method, seeds[0]), solved, _ends(rows, name))


def _ends(rows: Sequence[Row], name: str) -> tuple[float, float]:
    losses = {r.method: r.loss for r in rows if r.problem == name and r.method in (EXACT, START)}
    return losses[EXACT], losses[START]


def solved(template: Row, best: float, start: float) -> list[Row]:
    """The rows of one run; if it wrote none, one with an infinite loss at its end."""
    problem = accuracy_problem(template.problem)
    method = infhess if template.method == MINIMIZE else solvers(problem)[template.method]
    warm_up()
    record = Recorder(problem, template, best, start)
    with suppress(EnoughError):
        method(problem, record)
    return thinned(record.rows) or [replace(template, loss=math.inf)]


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Load and compile what is needed once per process, so that it is not timed."""
    from infhess.minimizing import minimize

    w = torch.zeros(200, 1, dtype=torch.float64, requires_grad=True)
    x = torch.randn(600, 200, dtype=w.dtype, generator=torch.Generator().manual_seed(0))
    for passes in (1, None):  # SGD, and Newton's method
        minimize(lambda b: (b @ w - 1).square().mean(), [w], list(torch.split(x, 50)), passes=passes)


def thinned(rows: Sequence[Row]) -> list[Row]:
    """The rows that are 5 % further, those that halve the best gap before them, and the last."""
    kept: list[Row] = []
    best = math.inf
    for row in rows:
        if not kept or row is rows[-1] or row.data_points >= 1.05 * kept[-1].data_points or row.loss < best - 1e-12:
            kept.append(row)
        best = min(best, row.loss)
    return kept if len(kept) < 400 else [*kept[:200], *kept[200::10], kept[-1]]


class Axes(harness.Axes):
    """Passes of gradients, work (passes of gradients and of products), and seconds."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(r for r in rows if r.experiment == EXPERIMENT)

    def value(self, axis: str, row: Row) -> float:
        """The cost of a row on a named axis."""
        passes = row.data_points / self.best(row.problem).data_points
        return {"passes": passes, "work": row.metric, "seconds": row.seconds}[axis]

    def least(self, axis: str, name: str, methods: Sequence[str], gap: float) -> tuple[float, str]:
        """The cost of the best method, and ""; if none reached the gap, what the closest had spent, and a remark."""
        _, value = self.cheapest(axis, name, dict.fromkeys(methods, 0), gap)
        ran = [m for m in methods if self.runs(name, m, 0)]
        if value < math.inf or not ran:
            return value, ""
        nearest = min(ran, key=lambda m: self.final(name, m, 0))
        spent = self.value(axis, self.runs(name, nearest, 0)[0][-1])
        return spent, f", which {nearest} had spent at {self.final(name, nearest, 0):.0e}"

    def others(self, name: str) -> list[str]:
        """Every method except `minimize`."""
        return self.methods(name, 0)


def report(rows: Sequence[Row], folder: Path, seeds: Sequence[int]) -> str:
    """summary.md, targets.md, table.md, a figure and report.html; returns the first two."""
    axes = Axes(rows)
    lead, aims = ahead(axes), target_cells(targets(axes))
    values = {"seeds": seeds, "new": NEW, "experiment": EXPERIMENT, "unrun": unrun(axes)}
    whole = Page(
        "Convex problems to eight digits",
        f"infhess {__version__}: infhess bench convex --accuracy --seed {seeds[0]}",
        (),
        [figure(axes, folder)],
        page.notes("bench-convex-accuracy", **values),
        [("minimize, and the best of the others", lead), ("Targets", aims), *everything(axes)],
    )
    return whole.write(folder, summary=lead, targets=aims)


def unrun(axes: Axes) -> dict[str, list[str]]:
    """Methods that apply to all problems but have no rows for one yet: the command continues with them."""
    absent = {name: [m for m in GENERAL if m not in axes.others(name)] for name in axes.problems}
    return {name: methods for name, methods in absent.items() if methods}


def number(value: float) -> str:
    """A number, formatted for a table."""
    return "not run" if value != value else "never" if value == math.inf else f"{value:.3g}"


def ahead(axes: Axes) -> Cells:
    """minimize to 1e-8 next to the best of the others on each axis."""
    head = ["problem, batch", *(f"{a} to 1e-8" for a in AXES), "passes: best first-order or quasi-Newton",
            "seconds: best of all others"]  # fmt: skip
    lines = [head]
    for name, batch in product(axes.problems, BATCHES):
        mine = [number(axes.to(a, name, MINIMIZE, batch, 1e-8)) for a in AXES]
        rivals = {"passes": FIRST_ORDER, "seconds": axes.others(name)}
        best = [axes.cheapest(axis, name, dict.fromkeys(methods, 0), 1e-8) for axis, methods in rivals.items()]
        lines.append([f"{name}, {batch}", *mine, *(f"{number(v)} ({m})" for m, v in best)])
    return lines


def targets(axes: Axes) -> list[Target]:
    """The goals, and what was measured."""
    found = [_lost(axes)]
    for name, batch in product(axes.problems, BATCHES):
        mine = {a: axes.to(a, name, MINIMIZE, batch, 1e-8) for a in AXES}
        if mine["passes"] != mine["passes"] or not axes.others(name):
            continue
        passes, word = axes.least("passes", name, FIRST_ORDER, 1e-8)
        found.append(at_most(f"{name}, {batch}: passes / best first-order's{word}", mine["passes"] / passes, 1 / 3))
        large = axes.best(name).metric >= LARGE
        others = [m for m in axes.others(name) if not (large and m in DENSE_NEWTON)]
        seconds, word = axes.least("seconds", name, others, 1e-8)
        what = f"{name}, {batch}: seconds / best other's{word}"
        found.append(at_most(what, mine["seconds"] / seconds, 1 if large else 2))
    return found


def _lost(axes: Axes) -> Target:
    runs = [run for name in axes.problems for batch in BATCHES for run in axes.runs(name, MINIMIZE, batch)]
    lost = sum(not min(map(axes.gap, run)) <= 1e-8 for run in runs)
    return at_most(f"runs that did not reach 1e-8, of {len(runs)}", lost, 0)


def everything(axes: Axes) -> list[tuple[str, Cells]]:
    """One table per problem."""
    head = ["method", *(f"{a} to {gap:.0e}" for a in AXES for gap in GAPS), "gap at the end"]
    found: list[tuple[str, Cells]] = []
    for name in axes.problems:
        each = [(f"{MINIMIZE}, batch {b}", MINIMIZE, b) for b in BATCHES] + [(m, m, 0) for m in axes.others(name)]
        lines = [[title, *_line(axes, name, m, b)] for title, m, b in each]
        found.append((name, [head, *lines]))
    return found


def _line(axes: Axes, name: str, method: str, batch: int) -> list[str]:
    cells = [number(axes.to(a, name, method, batch, gap)) for a in AXES for gap in GAPS]
    return [*cells, f"{axes.final(name, method, batch):.1e}"]


COLOURS = {
    "torch L-BFGS": (plots.GREY, "-"), "SciPy L-BFGS-B": (plots.GREY, "--"),
    "SciPy Newton-CG, infhess products": (plots.GREEN, "-"), "SciPy trust-ncg, infhess products": (plots.GREEN, "--"),
    "SketchySVRG": (plots.PURPLE, "-"), "SketchySAGA": (plots.PURPLE, "--"), "SketchyKatyusha": (plots.PURPLE, ":"),
    "Adam, cosine, 1e-2": (plots.ORANGE, "-"),
    "scikit-learn lbfgs": (plots.GREY, ":"), "scikit-learn saga": (plots.ORANGE, ":"),
    "scikit-learn newton-cholesky": (plots.INK, ":"),
}  # fmt: skip


def figure(axes: Axes, folder: Path) -> Figure:
    """The gap against each axis, with a row of panels per problem."""

    def lines(name: str) -> list[Line]:
        mine = Line(f"{MINIMIZE}, batch 256", plots.BLUE, axes.runs(name, MINIMIZE, 256))
        return [mine, *(Line(m, c, axes.runs(name, m, 0), d) for m, (c, d) in COLOURS.items())]

    panels = plots.gap_panels(axes, AXES, lines, height=2.4, lowest=1e-9)
    path = plots.save_panels(*panels, folder / "accuracy.svg", columns=3)
    return Figure(path, "Gap to the optimum against passes of gradients, work and seconds; bands span the seeds.")


def picture(path: Path, seed: int, name: str) -> Path:
    """One run: the gap as estimated by `minimize`, with its bound, and the true gap."""
    from infhess.minimizing import minimize

    p = accuracy_problem(name)
    best, start = p.value(p.solved()), p.value(p.model())
    model, true = p.model(), []
    result = minimize(
        p.loss(model), model.parameters(), p.batches(32, seed), gap=1e-10,
        callback=lambda row: true.append((p.value(model) - best) / (start - best)),
    )  # fmt: skip
    fig, ax = plots.figure(6.0, 3.8)
    result.plot(ax)
    ax.plot(range(1, len(true) + 1), true, "x", color=plots.INK, label="true gap")
    ax.set_title(f"minimize on {name}: {result.method}", loc="left")
    ax.legend(frameon=False)
    return plots.save(fig, path)
