"""Who is ahead of whom: the results of methods at each of their rates, and the cost to reach a goal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from statistics import fmean, median, median_low

from infhess_bench.bench.deep_baselines import COSINE, METHODS, ROTATED
from infhess_bench.bench.deep_bench import EXPERIMENT, at_rate, method_of
from infhess_bench.harness import ACCURACY, BESIDE, Curves, Row
from infhess_bench.problems.net_problems import NetProblem
from infhess_bench.problems.net_sets import net_problem

Cost = Callable[[Row], float]
# Measures of a finished run: which rows, and a number that should be low.
MEASURES: dict[str, tuple[str, Cost]] = {
    "objective": ("", lambda row: row.loss),
    "test loss": ("", lambda row: row.metric),
    "test error": (ACCURACY, lambda row: 1 - row.metric),
}
COSTS: dict[str, Cost] = {
    "gradients": lambda row: row.data_points / row.batch_size + NetProblem.price * row.products,
    "CPU seconds": lambda row: row.seconds,
}
MINE = ROTATED


class Standings:
    """Runs by problem, method and rate. A method is tuned for each measure separately: the rate with the lowest mean."""

    def __init__(self, rows: Sequence[Row], seeds: Sequence[int]) -> None:
        self.curves = Curves([row for row in rows if row.experiment == EXPERIMENT and row.seed in seeds])
        self.problems, self.end = self.curves.problems, cache(self._end)

    def runs(self, problem: str, title: str) -> list[list[Row]]:
        """One list of rows per seed."""
        return self.curves.runs(problem, title, net_problem(problem).batch)

    def titles(self, problem: str) -> list[str]:
        """Methods with their rates, as run."""
        return [t for t in self.curves.methods(problem, net_problem(problem).batch) if not t.endswith(BESIDE)]

    def peers(self, problem: str) -> list[str]:
        """Methods other than infhess, each once."""
        found = dict.fromkeys(method_of(title) for title in self.titles(problem))
        return [m for m in found if not m.startswith("infhess")]

    def _end(self, problem: str, title: str, measure: str) -> float:
        """A measure at the end, mean over seeds; infinite if a run was lost, NaN if there is none."""
        beside, value = MEASURES[measure]
        return self._mean(problem, title + beside, value)

    def _mean(self, problem: str, title: str, value: Cost) -> float:
        runs = self.runs(problem, title)
        return fmean(value(run[-1]) for run in runs) if runs else math.nan

    def measured(self, measure: str) -> list[str]:
        """Problems for which a measure is defined."""
        return [name for name in self.problems if not math.isnan(self.end(name, MINE, measure))]

    def tuned(self, problem: str, method: str, measure: str = "objective") -> str:
        """The method at its best rate."""
        rates = [title for title in self.titles(problem) if method_of(title) == method]
        return min(rates, key=lambda title: self.end(problem, title, measure), default=method)

    def best(self, problem: str, measure: str, *, tuned: bool) -> str:
        """The best of the other methods, at its default or tuned."""
        found = [self.tuned(problem, m, measure) if tuned else default_of(m) for m in self.peers(problem)]
        known = [title for title in found if not math.isnan(self.end(problem, title, measure))]
        return min(known, key=lambda title: self.end(problem, title, measure), default="")

    def ratio(self, problem: str, measure: str, *, tuned: bool) -> float:
        """The result of infhess over that of the best other method."""
        best = self.end(problem, self.best(problem, measure, tuned=tuned), measure)
        mine = self.end(problem, MINE, measure)
        return mine / best if best > 0 else 1.0 if mine == best else math.inf

    def goals(self, problem: str) -> list[float]:
        """The final objective of AdamW with warm-up and cosine at its best rate, one per seed."""
        return [run[-1].loss for run in self.runs(problem, self.tuned(problem, COSINE))]

    def spent(self, problem: str, title: str, of: str) -> float:
        """Gradients or seconds of the whole run, mean over seeds."""
        return self._mean(problem, title, COSTS[of])

    def cost(self, problem: str, title: str, of: str) -> float:
        """Gradients or seconds to that objective, median over seeds; infinite if most runs never reach it."""
        found = [reached(run, goal, COSTS[of]) for run, goal in zip(self.runs(problem, title), self.goals(problem))]
        return median(found) if found else math.nan


def default_of(method: str) -> str:
    """The method at its default."""
    return at_rate(method, METHODS[method].default or 0.0)


def reached(run: Sequence[Row], goal: float, cost: Cost) -> float:
    """The cost to reach the objective `goal`, interpolated in its logarithm between rows; infinite if it is never reached."""
    before: Row | None = None
    for row in run:
        if row.loss <= goal:
            if before is None or before.loss <= row.loss or row.loss <= 0:
                return cost(row)
            share = math.log(before.loss / goal) / math.log(before.loss / row.loss)
            return cost(before) + share * (cost(row) - cost(before))
        before = row
    return math.inf


def behind_until(standings: Standings, problem: str, rival: str, first: float = 0.05) -> float:
    """The last share of the run, from the first one on, at which infhess is behind a rival at equal work; 0 where never.

    The median over seeds, the lower one of two: in half of them it may be behind.
    """
    pairs = zip(standings.runs(problem, MINE), standings.runs(problem, rival))
    return median_low(max(_behind(mine, other, first), default=0.0) for mine, other in pairs)


def _behind(mine: Sequence[Row], other: Sequence[Row], first: float) -> Iterator[float]:
    work = COSTS["gradients"]
    for row in other:
        share = work(row) / work(other[-1])
        if share >= first and reached(mine, row.loss, work) > work(row):
            yield share
