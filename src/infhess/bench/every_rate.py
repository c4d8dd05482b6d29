"""What methods end with at every rate of their grids: a table per measure, and who is ahead of whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from infhess.harness import RATE, Curves, Row, markdown
from infhess.problems.held_out import net_problem

MEASURES = {"objective": "loss", "test loss": "metric", "seconds": "seconds"}


def ends(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """The last row of each problem and method, means over seeds."""
    curves, found = Curves(list(rows)), {}
    for problem in dict.fromkeys(row.problem for row in rows):
        batch = net_problem(problem).batch
        for method in (m for m in curves.methods(problem, batch) if not m.endswith(RATE)):
            last = [run[-1] for run in curves.runs(problem, method, batch)]
            loss, tested, seconds = (fmean(getattr(row, name) for row in last) for name in MEASURES.values())
            found[problem, method] = replace(last[0], loss=loss, metric=tested, seconds=seconds)
    return found


def summary(rows: Sequence[Row]) -> str:
    """One table for each measure: a row for each method, a column for each problem."""
    known = ends(rows)
    problems, methods = (list(dict.fromkeys(key[i] for key in known)) for i in (0, 1))
    tables = []
    for measure, name in MEASURES.items():
        table = [[measure, *problems]]
        for method in methods:
            cells = [known.get((problem, method)) for problem in problems]
            table.append([method, *(f"{getattr(row, name):.4g}" if row else "" for row in cells)])
        tables.append(markdown(table))
    return "\n\n".join(tables)
