"""infhess from any rate and in any units, beside sgd, momentum and Adam as tuned on another seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import product

from infhess.bench.deep_baselines import AROUND, BASES, METHODS, NO_RATE
from infhess.bench.deep_bench import EXPERIMENT, Selection
from infhess.bench.safety import InUnits
from infhess.harness import Job, Row, Setting, curve
from infhess.harness.comparison import Comparison, best_settings, read_settings
from infhess.harness.training import ends
from infhess.problems.net_sets import net_problem

TUNING, STARTS, UNITS = "bench-deep-tuning", "bench-deep-starts", "bench-deep-units"
RATES = (1e-6, 1e-4, 1e-2, 1.0, 1e2)
SCALES = (1e-3, 1.0, 1e3)
RESCALED = ("mnist-mlp", "cifar-net, Xavier")


def jobs(chosen: Selection) -> Iterator[Job]:
    """Every method on every problem: as it comes, and as tuned where it has a grid."""
    return Comparison(EXPERIMENT, net_problem).jobs(chosen.cells(), chosen.table(), chosen.seeds, tuned())


def tuning(chosen: Selection) -> Iterator[Job]:
    """The grids, on a seed that is not reported."""
    return Comparison(TUNING, net_problem, ends, math.inf).tuning(chosen.cells(), chosen.table())


def starts(chosen: Selection) -> Iterator[Job]:
    """`Preconditioned` around each base, from rates over eight orders of magnitude."""
    comparison = Comparison(STARTS, net_problem, ends, math.inf)
    around = [AROUND[base] for base in BASES if AROUND[base] in chosen.table()]
    for cell, method, rate, seed in product(chosen.cells(), around, RATES, chosen.seeds):
        yield comparison.job(cell, f"{method}, from {rate:g}", METHODS[method].make, Setting(rate), seed)


def units(chosen: Selection) -> Iterator[Job]:
    """`RateFree` with the loss, and with the weights, in other units."""
    cells = [cell for cell in chosen.cells() if cell.problem in RESCALED and NO_RATE in chosen.table()]
    for cell, what, scale, seed in product(cells, ("loss", "weights"), SCALES, chosen.seeds):
        template = Row(UNITS, cell.problem, f"{what} × {scale:g}", seed, cell.batch)
        yield Job(template, rescaled, (what, scale, cell.budget))


def rescaled(template: Row, what: str, scale: float, budget: int) -> list[Row]:
    """The end of a run of RateFree on the same problem in other units; the objective is given in the usual ones."""
    problem, factor = net_problem(template.problem), scale if what == "loss" else 1.0
    there = replace(problem, loss_of=lambda f, y: factor * problem.loss_of(f, y), l2=factor * problem.l2)
    if what == "weights":
        there = replace(problem, net=lambda: InUnits(problem.net(), scale), l2=problem.l2 / scale**2)
    (row,) = ends(curve(there, METHODS[NO_RATE].make(0.0), template, budget, ("",), math.inf))
    return [replace(row, loss=row.loss / factor, metric=row.metric / factor)]


def best(rows: Sequence[Row]) -> dict[str, Setting]:
    """The rates that ended lowest in the training objective."""
    return best_settings([r for r in rows if r.experiment == TUNING], lambda r: r.loss)


def tuned() -> dict[str, Setting]:
    """The settings that `infhess bench deep --tune` found, as they come with the package."""
    return read_settings((files("infhess.bench") / "tuned-deep.json").read_text(encoding="utf-8"))
