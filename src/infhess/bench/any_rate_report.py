"""From any rate: who ends lower, the targets, tables, figures and a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev

from infhess._version import __version__
from infhess.bench.any_rate import RATES, STARTS, UNITS
from infhess.bench.deep_baselines import (
    ADAM,
    AROUND,
    METHODS,
    NO_RATE,
    PAPER,
    RANK,
    RANKED,
    ROTATED,
    SCHEDULE_FREE,
    SGD,
)
from infhess.bench.deep_bench import EXPERIMENT
from infhess.experiments import page, plots
from infhess.experiments.page import Figure, Page
from infhess.experiments.plots import Line
from infhess.harness import BESIDE, RATE, Cells, Curves, Row, Target, at_most, markdown, missing, target_cells, write
from infhess.problems.net_problems import NetProblem
from infhess.problems.net_sets import net_problem

COLOURS = {
    NO_RATE: (plots.BLUE, "-"), AROUND["Adam"]: (plots.BLUE, ":"), AROUND["sgd"]: (plots.BLUE, "--"),
    ADAM: (plots.ORANGE, "-"), f"{ADAM}, tuned": (plots.ORANGE, "--"), SCHEDULE_FREE: (plots.GREEN, "-"),
    "Prodigy": (plots.PURPLE, "-"), f"{SGD}, tuned": (plots.GREY, "-"), PAPER: (plots.GREY, "--"),
}  # fmt: skip
AXES: dict[str, tuple[plots.Value, plots.Value]] = {
    "work": (lambda r: r.data_points + NetProblem.price * r.products * r.batch_size, lambda r: min(r.loss, 1e6)),
    "seconds": (lambda r: r.seconds, lambda r: min(r.loss, 1e6)),
    "data points": (lambda r: r.data_points, lambda r: min(r.metric, 1e6)),
}
LONG, EXTRA = 1000, 0.06  # runs of so many steps are long enough for the bound on extra cost
# What `Preconditioned` around a base is to be level with.
RIVALS = {"Adam": ADAM, "momentum .9": "momentum .9, tuned", "sgd": f"{SGD}, tuned"}


class Nets:
    """Rows of one kind as runs, and what they end with."""

    def __init__(self, rows: Sequence[Row], seeds: Sequence[int]) -> None:
        self.rows = [r for r in rows if r.seed in seeds]
        self.curves = Curves([r for r in self.rows if r.experiment == EXPERIMENT])
        self.problems = list(dict.fromkeys(r.problem for r in self.curves.rows))

    def runs(self, name: str, method: str) -> list[list[Row]]:
        """One list of rows per seed."""
        return self.curves.runs(name, method, net_problem(name).batch)

    def methods(self, name: str) -> list[str]:
        """That were run."""
        return [m for m in self.curves.methods(name, net_problem(name).batch) if not m.endswith(BESIDE)]

    def ends(self, name: str, method: str) -> list[Row]:
        """The last row of each seed."""
        return [run[-1] for run in self.runs(name, method)]

    def objective(self, name: str, method: str) -> float:
        """At the end, the mean over seeds; infinite where a run was lost, NaN where there is none."""
        return mean_of(r.loss for r in self.ends(name, method))

    def tested(self, name: str, method: str) -> float:
        """The test loss, likewise."""
        return mean_of(r.metric for r in self.ends(name, method))

    def from_rates(self, name: str, base: str) -> list[list[Row]]:
        """The ends of runs around a base, by the rate that it was made with."""
        return [self.of(STARTS, name, f"{AROUND[base]}, from {rate:g}") for rate in RATES]

    def of(self, experiment: str, name: str, method: str) -> list[Row]:
        """Rows of another experiment, one per seed."""
        return [r for r in self.rows if (r.experiment, r.problem, r.method) == (experiment, name, method)]


def mean_of(values: Iterable[float]) -> float:
    """NaN where there are none."""
    found = list(values)
    return fmean(found) if found else math.nan


def noise(found: Sequence[Sequence[Row]]) -> float:
    """The standard deviation over seeds, pooled over rates or methods."""
    spreads = [stdev(r.loss for r in rows) for rows in found if len(rows) > 1 and all(r.loss < math.inf for r in rows)]
    return fmean(s**2 for s in spreads) ** 0.5 if spreads else math.nan


def targets(nets: Nets) -> list[Target]:
    """The goals, and what was measured."""
    found = []
    for what, measure in (("training objective", nets.objective), ("test loss", nets.tested)):
        for rival, bound in ((ADAM, 0), (SCHEDULE_FREE, 1)):
            both = [n for n in nets.problems if {NO_RATE, rival} <= set(nets.methods(n))]
            behind = [n for n in both if not measure(n, NO_RATE) < measure(n, rival)]
            title = f"problems of {len(both)} where RateFree is behind {rival}'s default in {what}"
            found += [_none_of(title, behind, bound)] if both else []
    return [*found, *_costs(nets), *_units(nets), *_starts(nets)]


def _none_of(what: str, names: Sequence[str], most: int = 0) -> Target:
    return at_most(f"{what} ({', '.join(names)})" if names else what, len(names), most)


def _costs(nets: Nets) -> list[Target]:
    """In long runs: products at their price over gradients, and seconds per data point over those of Adam."""
    found = []
    for name in nets.problems:
        mine, adam = nets.ends(name, NO_RATE), nets.ends(name, ADAM)
        if not (mine and adam) or not all(r.data_points >= LONG * r.batch_size for r in adam):
            continue
        extra = fmean(NetProblem.price * r.products * r.batch_size / r.data_points for r in mine)
        found.append(at_most(f"{name}: extra gradients of RateFree", extra, EXTRA))
        seconds = fmean(r.seconds / r.data_points for r in mine) / fmean(r.seconds / r.data_points for r in adam) - 1
        found.append(at_most(f"{name}: extra seconds of RateFree over Adam", seconds, EXTRA))
    return found


def _units(nets: Nets) -> list[Target]:
    """Objective with the loss or the weights in other units over that in the usual ones, at worst."""
    found = []
    for name in nets.problems:
        for what in ("loss", "weights"):
            usual = [r.loss for r in nets.of(UNITS, name, f"{what} × 1")]
            other = [r.loss for s in ("0.001", "1000") for r in nets.of(UNITS, name, f"{what} × {s}")]
            if usual and other:
                worst = max(other) / fmean(usual)
                title = f"{name}: objective with {what} × 1e-3 or 1e3 over the usual, at worst"
                found.append(at_most(title, worst, 1.5))
    return found


def _starts(nets: Nets) -> list[Target]:
    """From any rate: none lost, rates within the noise of seeds, and level with the rival."""
    found = []
    for base, rival in RIVALS.items():
        rows = {n: nets.from_rates(n, base) for n in nets.problems}
        rows = {n: runs for n, runs in rows.items() if all(len(run) > 1 for run in runs)}  # one seed has no noise
        if not rows:
            continue
        first = {n: nets.runs(n, nets.methods(n)[0])[0][0].loss for n in rows}  # all begin with the same weights
        lost = sum(not r.loss < first[n] for n, runs in rows.items() for run in runs for r in run)
        found.append(at_most(f"around {base}: runs lost, of {sum(len(r) for v in rows.values() for r in v)}", lost, 0))
        far = {n: max(abs(_mean([run]) - _mean(runs)) for run in runs) for n, runs in rows.items()}
        apart = [n for n, runs in rows.items() if not far[n] <= 2 * noise(runs)]
        found.append(_none_of(f"around {base}: problems where rates differ by over two deviations of seeds", apart))
        both = {n: runs for n, runs in rows.items() if rival in nets.methods(n)}
        behind = [n for n, runs in both.items() if not _mean(runs) <= nets.objective(n, rival) + 2 * noise(runs)]
        title = f"around {base}: problems where it is not level with {rival}"
        found += [_none_of(title, behind)] if both else []
    return found


def _mean(runs: Sequence[Sequence[Row]]) -> float:
    return fmean(r.loss for run in runs for r in run)


def report(rows: Sequence[Row], seeds: Sequence[int], folder: Path) -> str:
    """summary.md, targets.md, table.md, starts.md, rank.md, figures and report.html; returns the first two."""
    nets = Nets(rows, seeds)
    parts: dict[str, tuple[str, Cells]] = {
        "summary": ("At the end", summary(nets)),
        "targets": ("Targets", target_cells(targets(nets))),
        "starts": ("From any rate", starts(nets)),
        "rank": ("What directions add", ranked(nets)),
        "table": ("All methods", everything(nets)),
    }
    texts = {name: markdown(cells) for name, (_, cells) in parts.items()}
    texts["summary"] += "\n† infhess was not run on it in development.\n" if any(map(_unseen, nets.problems)) else ""
    for name, text in texts.items():
        write(folder / f"{name}.md", text)
    whole = Page(
        "Nets without a rate, head to head",
        f"infhess {__version__} and what users would pick instead: infhess bench deep --seed {seeds[0]}",
        (),
        [_losses(nets, folder), _rates(nets, folder)],
        notes(nets, seeds),
        list(parts.values()),
    )
    write(folder / "report.html", whole.html())
    return f"{texts['summary']}\n{texts['targets']}"


def summary(nets: Nets) -> Cells:
    """Training objective (test loss) at the end."""
    shown = (ROTATED, NO_RATE, ADAM, f"{ADAM}, tuned", SCHEDULE_FREE, f"{SGD}, tuned")
    lines = [["problem", *shown, "best of all others at their defaults"]]
    for name in nets.problems:
        others = [m for m in nets.methods(name) if not (m.startswith("infhess") or m.endswith("tuned"))]
        best = min(others, key=lambda m: nets.objective(name, m), default="")
        cells = (_pair(nets, name, m) for m in shown)
        lines.append([f"{name}{_unseen(name)}", *cells, f"{best} {_pair(nets, name, best)}"])
    return lines


def _unseen(name: str) -> str:
    return "" if net_problem(name).seen else " †"


def _pair(nets: Nets, name: str, method: str) -> str:
    return f"{_shown(nets.objective(name, method))} ({_shown(nets.tested(name, method))})"


def _shown(x: float) -> str:
    return "lost" if math.isinf(x) else "–" if math.isnan(x) else f"{x:.3g}" if abs(x) < 10 else f"{x:.1f}"


def everything(nets: Nets) -> Cells:
    """All methods: objective and test loss at the end."""
    methods = dict.fromkeys(m for name in nets.problems for m in nets.methods(name))
    return [["method", *nets.problems], *([m, *(_pair(nets, name, m) for name in nets.problems)] for m in methods)]


def ranked(nets: Nets) -> Cells:
    """What a preconditioner of low rank adds over the step length alone."""
    lines = [["problem", "the step length alone", f"with {RANK} directions per layer", "directions"]]
    methods = (AROUND["sgd"], RANKED)
    for name in nets.problems:
        alone, beside = (nets.objective(name, m) for m in methods)
        least = 2 * noise([nets.ends(name, m) for m in methods])
        word = "add nothing" if abs(beside - alone) <= least else "help" if beside < alone else "cost more"
        if not math.isnan(beside - alone):
            lines.append([name, *(_pair(nets, name, m) for m in methods), "–" if math.isnan(least) else word])
    return lines


def starts(nets: Nets) -> Cells:
    """Objective at the end by the rate that the base was made with: mean over seeds."""
    lines = [["problem, base", *(f"{r:g}" for r in RATES), "seeds differ by", "rival"]]
    for name in nets.problems:
        for base, rival in RIVALS.items():
            found = nets.from_rates(name, base)
            if any(found):
                means = (_shown(mean_of(r.loss for r in rows)) for rows in found)
                beside = f"{rival} {_shown(nets.objective(name, rival))}"
                lines.append([f"{name}, {base}", *means, _shown(noise(found)), beside])
    return lines


def _losses(nets: Nets, folder: Path) -> Figure:
    fig, grid = plots.grid(len(nets.problems), 3, height=2.4, share=False)
    for row, name in zip(grid, nets.problems):
        for ax, (label, (x, y)) in zip(row, AXES.items()):
            for method, (colour, dashes) in COLOURS.items():
                plots.draw(ax, Line(method, colour, nets.runs(name, method), dashes), y, x)
            ax.set(xscale="log", yscale="log", xlabel=label)
        row[0].set_ylabel(f"{name}\nobjective", fontsize=7)
        row[2].set_ylabel("test loss", fontsize=7)
    path = plots.save_panels(fig, grid, folder / "deep.svg", columns=3)
    caption = "Training objective against work and seconds, and test loss against data points; thin lines are seeds."
    return Figure(path, caption)


def _rates(nets: Nets, folder: Path) -> Figure:
    """The rate found over time, with its uncertainty."""
    columns = 3
    fig, grid = plots.grid(-(-len(nets.problems) // columns), columns, height=2.2, share=False)
    for ax, name in zip(grid.flat, nets.problems):
        for run in nets.runs(name, NO_RATE + RATE):
            steps, rates = [r.data_points / r.batch_size for r in run], [r.loss for r in run]
            low, high = ([r.loss * math.exp(s * 2 * r.metric) for r in run] for s in (-1, 1))
            ax.plot(steps, rates, color=plots.BLUE, linewidth=1, label="rate of RateFree, one line per seed")
            band = {"alpha": 0.15, "linewidth": 0, "label": "two standard deviations"}
            ax.fill_between(steps, low, high, color=plots.BLUE, **band)
        ax.set(xscale="log", yscale="log", xlabel="steps", title=name)
    return Figure(plots.save_panels(fig, grid, folder / "rates.svg"), "The rate that RateFree found, over time.")


def notes(nets: Nets, seeds: Sequence[int]) -> list[str]:
    """How it was done, and what does not show in the figures."""
    seen, new = ([n for n in nets.problems if net_problem(n).seen is known] for known in (True, False))
    return page.notes("bench-deep-starts", seeds=seeds, seen=seen, new=new, missing=missing(METHODS))
