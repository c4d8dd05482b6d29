"""Batches of 16 to 1,024 at equal data: whether the rule's learning rate is right at each size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from statistics import fmean

from infhess_bench.bench.deep_baselines import COSINE, METHODS, ROTATED
from infhess_bench.bench.deep_bench import Selection, at_rate
from infhess_bench.bench.rate_free_runs import RateFreeRun
from infhess_bench.harness import (
    Cell,
    Comparison,
    Curves,
    Job,
    Method,
    Row,
    Setting,
    at_least,
    ends,
    markdown,
    target_cells,
)
from infhess_bench.problems.net_sets import net_problem

EXPERIMENT = "bench-deep-batches"
SIZES, FACTORS = (16, 64, 256, 1024), (0.5, 1.0, 2.0)
LEVEL = 1.1  # the rule is right if it is within 10 % of the best factor


def scaled(factor: float) -> Method:
    """`RateFree` at a multiple of its learning rate, that is of σ."""
    return partial(RateFreeRun, scaling="kronecker", lr=factor)


def title(factor: float) -> str:
    """The name of the method."""
    return ROTATED if factor == 1 else f"{ROTATED}, σ × {factor:g}"


def jobs(chosen: Selection) -> Iterator[Job]:
    """infhess at multiples of σ, and AdamW with warm-up and cosine at each of its rates."""
    run = Comparison(EXPERIMENT, net_problem, ends, math.inf).job
    for found, size, seed in product(chosen.cells(), SIZES, chosen.seeds):
        cell = Cell(found.problem, size, max(found.budget, size))
        yield from (run(cell, title(f), scaled, Setting(f), seed) for f in FACTORS)
        cosine = METHODS[COSINE]
        yield from (run(cell, at_rate(COSINE, r), cosine.make, Setting(r), seed) for r in cosine.tried())


def summary(rows: Sequence[Row]) -> str:
    """Objective (test loss) at the end by problem and batch size, and where the rule is right."""
    curves, level = Curves(rows), {}
    lines = [["problem, batch", *(f"σ × {f:g}" for f in FACTORS), f"{COSINE}, the best of its rates"]]
    for problem, size in dict.fromkeys((row.problem, row.batch_size) for row in rows):

        def end(method: str, problem: str = problem, size: int = size) -> tuple[float, float]:
            last = curves.ends(problem, method, size)
            return (fmean(r.loss for r in last), fmean(r.metric for r in last)) if last else (math.nan, math.nan)

        mine = [end(title(f)) for f in FACTORS]
        rival = min(end(m) for m in curves.methods(problem, size) if m.startswith(COSINE))
        lines.append([f"{problem}, {size}", *(f"{loss:.3g} ({test:.3g})" for loss, test in [*mine, rival])])
        level[problem, size] = mine[FACTORS.index(1.0)][0] <= LEVEL * min(mine)[0]
    holds = at_least("the rule's σ is within 10 % of the best of the three, share", fmean(level.values()), 0.9)
    return f"{markdown(lines)}\n{markdown(target_cells([holds]))}"
