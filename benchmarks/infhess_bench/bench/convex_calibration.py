"""Whether the bound on the gap of `minimize` holds, and how far above the gap it is: over 200 runs, pass by pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch

from infhess.minimizing.minimize import GIB
from infhess.minimizing.run import Run
from infhess_bench.harness import EXACT, START, Job, Key, Row, at_least, at_most, target_cells, written
from infhess_bench.harness.curves import solved_rows
from infhess_bench.problems import ConvexProblem
from infhess_bench.problems.convex_problems import CONVEX, logistic

EXPERIMENT = "bench-convex-calibration"
BATCHES = (32, 256)
# Points taken from each problem, and denominators of the pool's share of them.
SIZES = {
    "digits": (500, 1797), "breast-cancer": (500, 569), "mnist-3v5": (4000,), "sarcos-nat": (2000, 20_000),
    "sarcos-map": (2000, 20_000),
}  # fmt: skip
L2, SHARES = (1e-6, 1e-4, 1e-2), (1, 2, 4)
# The same with memory for only a part of the points, fewer than two per weight: L-BFGS around P.
MEMORY, KEPT, KEPT_OF, KEPT_PASSES = "memory for", 8, ("digits", "mnist-3v5", "sarcos-nat", "sarcos-map"), 200
# Generated data, in addition.
TALL, TALL_N, TALL_L2, TALL_SHARES, TALL_SEEDS = "tall", 100_000, (1e-6, 1e-5, 1e-4, 1e-3, 1e-2), (1, 4, 16), 3
QUICK = ("digits", "breast-cancer")
# Runs continue to TARGET; gaps below FLOOR are rounding of the reference.
TARGET, PASSES, FLOOR = 1e-9, 40, 1e-11
# Goals: the share of passes in which the 95 % bound holds, and its median ratio to the gap.
HOLDS, TIGHT = 0.93, 10.0


class Case(NamedTuple):
    """A problem on n of its points, chosen by the seed, with another l2."""

    problem: str
    n: int
    l2: float
    seed: int = 0

    @property
    def title(self) -> str:
        """The name in rows."""
        return f"{self.problem}, n {self.n}, l2 {self.l2:.0e}"


def cases(quick: bool = False) -> list[tuple[Case, Sequence[int], Sequence[int]]]:
    """The cases, each with the shares of its data that pools take, and its batch sizes."""
    known = [Case(name, n, l2, i) for i, (name, sizes) in enumerate(SIZES.items()) for n, l2 in product(sizes, L2)]
    if quick:
        return [(case, SHARES, BATCHES) for case in known if case.problem in QUICK and case.n == SIZES[case.problem][0]]
    tall = [Case(TALL, TALL_N, l2, seed) for l2, seed in product(TALL_L2, range(TALL_SEEDS))]
    return [(case, SHARES, BATCHES) for case in known] + [(case, TALL_SHARES, BATCHES[1:]) for case in tall]


@lru_cache(maxsize=1)
def calibrated_problem(case: Case) -> ConvexProblem:
    """The problem of a case, cached for the next run in this process."""
    if case.problem == TALL:
        return replace(tall(case.seed), l2=case.l2)
    problem = CONVEX[case.problem]()
    chosen = torch.randperm(len(problem.data[0]), generator=torch.Generator().manual_seed(case.seed))[: case.n]
    x, y = problem.data
    return replace(problem, data=(x[chosen], y[chosen]), l2=case.l2, test=None)


def tall(seed: int) -> ConvexProblem:
    """Logistic regression of 100,000 points, 40 features with condition number 1e4."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(TALL_N, 40, generator=g, dtype=torch.float64) * torch.logspace(0, -2, 40, dtype=torch.float64)
    return ConvexProblem((x, torch.sign(x.sum(1) + torch.randn(TALL_N, generator=g, dtype=torch.float64))), logistic)


def jobs(quick: bool = False) -> Iterator[Job]:
    """All runs; each problem is solved exactly first."""
    for case, shares, batches in cases(quick):
        yield Job(Row(EXPERIMENT, case.title, EXACT, case.seed), ends_rows, (case,))
        for share, batch in product(shares, batches):
            yield Job(Row(EXPERIMENT, case.title, f"pool 1/{share}", case.seed, batch), passes, (case, share))
        if case.problem in KEPT_OF and case.n <= 4000 and not quick:
            yield Job(Row(EXPERIMENT, case.title, f"{MEMORY} 1/{KEPT}", case.seed, BATCHES[1]), passes, (case, 0, KEPT))


def ends_rows(template: Row, case: Case) -> list[Row]:
    """The minimum by Newton's method in double precision, and the start."""
    return solved_rows(template, calibrated_problem(case))


def passes(template: Row, case: Case, share: int = 0, kept: int = 0) -> list[Row]:
    """A row for each pass that has a gap: the loss over all the data, and as the metric its 95 % bound.

    The pool is 1/share of the points, or `minimize` decides; there is memory for 1/kept of the points, or for all.
    """
    p = calibrated_problem(case)
    x, model, started = p.data[0], p.model(), time.perf_counter()
    memory, most = (4 * (x.element_size() * x.numel()) / kept, KEPT_PASSES) if kept else (GIB, PASSES)
    batches = p.batches(template.batch_size, template.seed)
    run = Run(p.loss(model), model.parameters(), batches, TARGET, most, memory, None, started)
    run.pool = case.n // share if share else None
    rows = [row for row in run.passes() if row["gap"] == row["gap"] and not row["cut"]]
    same = ("data_points", "products", "seconds", "loss")
    return [replace(template, **{name: row[name] for name in same}, metric=row["gap_upper"]) for row in rows]


class Measured(NamedTuple):
    """The true gap after a pass and its bound; the name of the problem, and of the run."""

    problem: str
    run: Key
    gap: float
    bound: float


def measured(rows: Sequence[Row]) -> list[Measured]:
    """All passes, run by run."""
    ends = {(r.problem, r.seed, r.method): r.loss for r in rows if r.method in (EXACT, START)}
    found = []
    for r in rows:
        if r.method not in (EXACT, START):
            best, start = ends[r.problem, r.seed, EXACT], ends[r.problem, r.seed, START]
            name = r.problem.split(",")[0] + (", little memory" if r.method.startswith(MEMORY) else "")
            found.append(Measured(name, r.key, (r.loss - best) / (start - best), r.metric))
    return found


def ratios(found: Sequence[Measured]) -> list[float]:
    """Bound over gap, for gaps above rounding."""
    return [m.bound / m.gap for m in found if m.gap > FLOOR]


def held(found: Sequence[Measured]) -> float:
    """The share of passes in which the bound was at least the gap."""
    each = ratios(found)
    return sum(ratio >= 1 for ratio in each) / len(each)


def line(name: str, found: Sequence[Measured]) -> list[str]:
    """A line of the table."""
    last = {m.run: m.gap for m in found}
    lost = sum(not gap <= TARGET for gap in last.values())
    each = ratios(found)
    return [name, f"{len(last)}", f"{len(each):,}", f"{100 * held(found):.1f} %", f"{median(each):.2f}", f"{lost}"]


HEAD = ["problem", "runs", "passes with a gap", "bound holds", "bound / gap, median", "runs that ended above 1e-9"]


def report(rows: Sequence[Row], folder: Path) -> str:
    """table.md and targets.md; returns both."""
    found = measured(rows)
    lines = [line(n, [m for m in found if m.problem == n]) for n in dict.fromkeys(m.problem for m in found)]
    aims = [
        at_least("share of passes in which gap_upper(0.95) is at least the gap", held(found), HOLDS),
        at_most("gap_upper(0.95) over the gap, in the median", median(ratios(found)), TIGHT),
    ]
    return written(folder, table=[HEAD, *lines, line("all", found)], targets=target_cells(aims))
