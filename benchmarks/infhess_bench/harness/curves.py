"""Rows as curves: gaps to a known optimum, data points to reach a gap, medians over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median

from infhess.cli.rows import Row
from infhess_bench.harness.jobs import Job
from infhess_bench.problems.convex_problems import ConvexProblem, convex_problem, solution

EXACT, START = "exact solution", "start"
GAPS = (1e-1, 1e-2, 1e-3, 1e-4)


class Curves:
    """Rows of runs by problem, method, batch size and seed; the exact solution and the start are two of the methods."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        self.problems = list(dict.fromkeys(row.problem for row in self.rows))
        self._by: dict[tuple[str, str, int], dict[int, list[Row]]] = {}
        for row in self.rows:
            self._by.setdefault((row.problem, row.method, row.batch_size), {}).setdefault(row.seed, []).append(row)

    def methods(self, problem: str, batch: int) -> list[str]:
        """Names of methods, in the order in which they were run."""
        found = dict.fromkeys(m for p, m, b in self._by if p == problem and b == batch)
        return [m for m in found if m not in (EXACT, START)]

    def runs(self, problem: str, method: str, batch: int) -> list[list[Row]]:
        """One list of rows per seed."""
        return list(self._by.get((problem, method, batch), {}).values())

    def best(self, problem: str) -> Row:
        """The exact solution."""
        return self.runs(problem, EXACT, 0)[0][0]

    def gap(self, row: Row) -> float:
        """(L − L*)/(L₀ − L*)."""
        best, start = self.best(row.problem).loss, self.runs(row.problem, START, 0)[0][0].loss
        return max((row.loss - best) / (start - best), 1e-16)

    def final(self, problem: str, method: str, batch: int) -> float:
        """The gap at the end of a run, median over seeds; infinite if a run diverged."""
        ends = [self.gap(row) for row in self.ends(problem, method, batch)]
        return median(ends) if ends else math.nan

    def ends(self, problem: str, method: str, batch: int) -> list[Row]:
        """The last row for each seed."""
        return [run[-1] for run in self.runs(problem, method, batch)]

    def first(
        self, problem: str, method: str, batch: int, reached: Callable[[Row], bool], cost: Callable[[Row], float]
    ) -> float:
        """The cost of the first row that meets a condition, median over seeds; infinite if none does."""
        rows = [next((r for r in run if reached(r)), None) for run in self.runs(problem, method, batch)]
        return median(cost(r) if r else math.inf for r in rows) if rows else math.nan

    def points_to(self, problem: str, method: str, batch: int, gap: float) -> float:
        """Data points read until the gap was reached."""
        return self.first(problem, method, batch, lambda r: self.gap(r) <= gap, lambda r: float(r.data_points))


class Axes(Curves):
    """Curves with the axes on which methods are compared; a subclass defines the cost of a row on each."""

    def value(self, axis: str, row: Row) -> float:
        """The cost of a row on a named axis."""
        raise NotImplementedError

    def to(self, axis: str, problem: str, method: str, batch: int, gap: float) -> float:
        """The cost to reach a gap, median over seeds; infinite if it was not reached, NaN if it was not run."""
        return self.first(problem, method, batch, lambda r: self.gap(r) <= gap, lambda r: self.value(axis, r))

    def cheapest(self, axis: str, problem: str, runs: Mapping[str, int], gap: float) -> tuple[str, float]:
        """The cheapest of several methods, given with their batch sizes, and its cost; "none" if none was run."""
        found = {method: self.to(axis, problem, method, batch, gap) for method, batch in runs.items()}
        known = {method: cost for method, cost in found.items() if not math.isnan(cost)} or {"none": math.inf}
        return min(known.items(), key=lambda item: item[1])


def optimum(experiment: str, problem: str) -> Job:
    """The job for the exact solution of a problem, and its start."""
    return Job(Row(experiment, problem, EXACT), optimum_rows)


def optimum_rows(template: Row) -> list[Row]:
    """The exact solution, which reads everything once, and the start."""
    p = convex_problem(template.problem)
    both = {EXACT: solution(template.problem), START: p.model()}
    exact, start = (replace(template, method=m, loss=p.value(w), metric=p.tested(w)) for m, w in both.items())
    return [replace(exact, data_points=len(p.data[0])), start]


def solved_rows(template: Row, problem: ConvexProblem) -> list[Row]:
    """The same for a problem that is not one of those with a name; without a metric."""
    ends = {EXACT: problem.value(problem.solved()), START: problem.value(problem.model())}
    n = len(problem.data[0])
    return [replace(template, method=method, data_points=n, loss=loss) for method, loss in ends.items()]


@lru_cache(maxsize=8)
def ends_of(name: str) -> tuple[float, float]:
    """The loss of a convex problem at its solution, and at the start."""
    best, start = optimum_rows(Row("", name, EXACT))
    return best.loss, start.loss


def thinned(rows: Sequence[Row], budget: int = 0) -> list[Row]:
    """A run on a convex problem with fewer rows: see `thin`."""
    return list(thin(rows, *ends_of(rows[0].problem)))


def thin(rows: Sequence[Row], best: float, start: float) -> Iterator[Row]:
    """The rows that are at least a quarter further, the first at each gap, and the last."""
    last, left = -math.inf, list(GAPS)
    for row in rows:
        reached = [gap for gap in left if row.loss - best <= gap * (start - best)]
        if row is rows[-1] or reached or row.data_points >= 1.25 * last:
            last = row.data_points
            yield row
        left = [gap for gap in left if gap not in reached]


def shown(number: float) -> str:
    """A count of data points, formatted for a table."""
    if math.isnan(number):
        return "not run"
    return "never" if math.isinf(number) else f"{number:.2g}".replace("e+0", "e") if number >= 1e5 else f"{number:,.0f}"
