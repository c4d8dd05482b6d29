"""The paper's convex experiments: a grid of rates on a separate seed, then curves at the best rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infhess_bench.experiments import plots
from infhess_bench.experiments.plots import Line, Value
from infhess_bench.harness import AVERAGED, Baseline, Job, Make, Row, Setting, ends, paper, sgd
from infhess_bench.harness.comparison import Cell, Comparison, best_settings
from infhess_bench.harness.curves import EXACT, Curves, optimum, shown, thinned
from infhess_bench.problems.convex_problems import convex_problem

PAPER, TUNED, ONLINE = "paper, rate of sgd", "paper, rate tuned", "infhess, online"


@dataclass(frozen=True)
class Size:
    """How much of an experiment to run."""

    name: str
    problems: tuple[str, ...]
    batches: tuple[int, ...]
    budget: int
    seeds: int
    rates: tuple[float, ...]

    def cells(self) -> list[Cell]:
        """Problems × batch sizes."""
        return [Cell(name, batch, self.budget) for name in self.problems for batch in self.batches]


def rates(low: int, high: int) -> tuple[float, ...]:
    """Rates 10^(i/3), rounded to two digits."""
    return tuple(float(f"{10 ** (i / 3):.2g}") for i in range(low, high))


def named(experiment: str, size: str) -> str:
    """The experiment's name in the rows: sizes are kept apart."""
    return experiment if size == "default" else f"{experiment}-{size}"


@dataclass(frozen=True)
class ConvexExperiment:
    """The methods of a figure: SGD and the paper's method at the best of a grid of rates, the paper's at SGD's rate, and more.

    Those in `beside` also run at SGD's rate, those in `untuned` have nothing to set.
    """

    experiment: str
    sgd: str
    untuned: Mapping[str, Make]
    beside: Mapping[str, Make]

    def tuning(self, size: Size) -> Iterator[Job]:
        """Runs over the grid of rates, on a seed that is not reported; and the exact solutions."""
        name, methods = named(self.experiment, size.name), {self.sgd: sgd, TUNED: paper}
        yield from (optimum(name, problem) for problem in size.problems)
        grids = {method: Baseline(make, size.rates) for method, make in methods.items()}
        yield from Comparison(name, convex_problem, ends).tuning(size.cells(), grids)

    def runs(self, size: Size, rows: Sequence[Row], seeds: Sequence[int]) -> Iterator[Job]:
        """The curves of the figure, at the rates that tuning found."""
        comparison, settings = self.comparison(size), best_settings(rows, lambda r: r.loss)
        for cell in size.cells():
            own, best = settings[cell.key(TUNED)], settings[cell.key(self.sgd)]
            runs = [(title, make, best) for title, make in {self.sgd: sgd, **self.beside, PAPER: paper}.items()]
            runs += [(TUNED, paper, own)]
            runs += [(title, make, Setting(model=AVERAGED)) for title, make in self.untuned.items()]
            for seed in seeds:
                yield from (comparison.job(cell, title, make, setting, seed) for title, make, setting in runs)

    def comparison(self, size: Size) -> Comparison:
        """The comparison that runs the curves."""
        return Comparison(named(self.experiment, size.name), convex_problem, thinned)


def to_gaps(c: Curves, name: str, method: str, batch: int) -> str:
    """Data points to each of three gaps."""
    return " / ".join(shown(c.points_to(name, method, batch, gap)) for gap in (1e-1, 1e-2, 1e-3))


def before_first_step(c: Curves, name: str, batch: int) -> tuple[int, float]:
    """Data points that the paper's method reads before its first step, and their share of the run."""
    run = c.runs(name, PAPER, batch)[0]
    points = run[0].data_points - batch
    return points, points / max(run[-1].data_points, 1)


def draw(ax: Any, lines: Sequence[Line], value: Value, exact: Row) -> float:
    """Draw lines in a panel, and the exact solution, whose value is returned."""
    for line in lines:
        plots.draw(ax, line, value)
    ax.axhline(value(exact), color=plots.INK, linewidth=0.8, linestyle=(0, (1, 2)), label=EXACT)
    return value(exact)
