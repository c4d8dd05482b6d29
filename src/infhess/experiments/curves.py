"""Rows as curves: gaps to the optimum, data points to reach one, medians over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from infhess.experiments.rows import Row

EXACT, START = "exact solution", "start"
GAPS = (1e-1, 1e-2, 1e-3, 1e-4)


class Curves:
    """Rows of runs by problem, method, batch size and seed; two of the methods are the exact solution and the start."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        self._by: dict[tuple[str, str, int], dict[int, list[Row]]] = {}
        for row in self.rows:
            self._by.setdefault((row.problem, row.method, row.batch_size), {}).setdefault(row.seed, []).append(row)

    def methods(self, problem: str, batch: int) -> list[str]:
        """Names, in the order in which they were run."""
        found = dict.fromkeys(m for p, m, b in self._by if p == problem and b == batch)
        return [m for m in found if m not in (EXACT, START)]

    def runs(self, problem: str, method: str, batch: int) -> list[list[Row]]:
        """One list of rows a seed."""
        return list(self._by.get((problem, method, batch), {}).values())

    def best(self, problem: str) -> Row:
        """The exact solution."""
        return self.runs(problem, EXACT, 0)[0][0]

    def gap(self, row: Row) -> float:
        """(L − L*)/(L₀ − L*)."""
        best, start = self.best(row.problem).loss, self.runs(row.problem, START, 0)[0][0].loss
        return max((row.loss - best) / (start - best), 1e-16)

    def final(self, problem: str, method: str, batch: int) -> float:
        """The gap at the end of a run, the median over seeds; infinite where a run diverged."""
        ends = [self.gap(run[-1]) for run in self.runs(problem, method, batch)]
        return median(ends) if ends else math.nan

    def points_to(self, problem: str, method: str, batch: int, gap: float) -> float:
        """Data points read when the gap was reached, the median over seeds; infinite where it was not."""
        runs = self.runs(problem, method, batch)
        first = (next((r.data_points for r in run if self.gap(r) <= gap), math.inf) for run in runs)
        return float(median(first)) if runs else math.nan


def thinned(rows: Sequence[Row], best: float, start: float) -> list[Row]:
    """A run without most of its rows: those that are a quarter further, the first at each gap, and the last."""
    kept: list[Row] = []
    left = list(GAPS)
    for row in rows:
        reached = [gap for gap in left if row.loss - best <= gap * (start - best)]
        if not kept or row is rows[-1] or reached or row.data_points >= 1.25 * kept[-1].data_points:
            kept.append(row)
        left = [gap for gap in left if gap not in reached]
    return kept


def shown(number: float) -> str:
    """A count of data points for a table."""
    if math.isnan(number):
        return "not run"
    return "never" if math.isinf(number) else f"{number:.2g}".replace("e+0", "e") if number >= 1e5 else f"{number:,.0f}"


def listed(parts: Iterable[str]) -> str:
    """With commas."""
    return ", ".join(parts)
