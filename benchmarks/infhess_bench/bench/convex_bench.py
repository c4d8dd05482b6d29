"""Convex problems, head to head: infhess and the alternatives, in data points read, in work, and in seconds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from itertools import product

import torch

from infhess.curvature import Hessian
from infhess_bench import harness
from infhess_bench.bench.accuracy_baselines import applies, scikit_model
from infhess_bench.bench.convex_baselines import METHODS, ONLINE
from infhess_bench.harness import AVERAGED, Job, Row, Setting, ends_of, optimum, thinned
from infhess_bench.harness.comparison import Cell, Comparison, best_settings, read_settings
from infhess_bench.harness.timing import median_seconds, processor_seconds
from infhess_bench.problems import ConvexProblem, Shuffled, convex_problem

EXPERIMENT, TUNING, STABILITY = "bench-convex", "bench-convex-tuning", "bench-convex-stability"
COST, REPEATS = "cost of a product", 41
BUDGETS = {
    "sarcos-map": 200_000, "sarcos-nat": 200_000, "mnist-3v5": 200_000, "digits": 100_000, "breast-cancer": 60_000,
}  # fmt: skip
QUICK = {"digits": 30_000, "breast-cancer": 20_000}
BATCHES = (32, 256)
STABLE_BATCHES, STABLE_BUDGET = (8, 32, 128, 512), 40_000
# scikit-learn's solvers, compared in seconds only.
LIBRARY = ("scikit-learn saga", "scikit-learn lbfgs")
WORST = 1e3
LONGEST = 20  # seconds of one call of a solver, after which no longer call is made


def jobs(seeds: Sequence[int], budgets: dict[str, int]) -> Iterator[Job]:
    """Every method on every problem and batch size: at its default if it has one, and as tuned."""
    comparison, settings = Comparison(EXPERIMENT, convex_problem, thinned), tuned()
    for name, budget in budgets.items():
        yield optimum(EXPERIMENT, name)
        for batch in BATCHES:
            yield Job(Row(EXPERIMENT, name, COST, 0, batch), cost_of_a_product)
            yield from comparison.jobs([Cell(name, batch, budget)], METHODS, seeds, settings)
        for method in LIBRARY:
            yield Job(Row(EXPERIMENT, name, method, seeds[0]), solver_curve)


def tuning(budgets: dict[str, int]) -> Iterator[Job]:
    """The tuning grids, on a seed that is not reported, at half the budget."""
    cells = [Cell(name, batch, budget // 2) for name, budget in budgets.items() for batch in BATCHES]
    return Comparison(TUNING, convex_problem, scored).tuning(cells, METHODS)


def stability(seeds: Sequence[int], budgets: dict[str, int]) -> Iterator[Job]:
    """infhess over batch sizes, to count divergences."""
    comparison, online = Comparison(STABILITY, convex_problem, stable), METHODS[ONLINE]
    for (name, budget), batch, seed in product(budgets.items(), STABLE_BATCHES, seeds):
        cell = Cell(name, batch, min(budget, STABLE_BUDGET))
        yield comparison.job(cell, ONLINE, online.make, Setting(0.0, AVERAGED), seed)


def stable(rows: Sequence[Row], budget: int) -> list[Row]:
    """The end of a run; the metric is the loss at the start, above which it counts as diverged."""
    p = convex_problem(rows[-1].problem)
    return [replace(rows[-1], metric=p.value(p.model()))]


def scored(rows: Sequence[Row], budget: int) -> list[Row]:
    """The score of a setting, one row per outcome: the mean of log₁₀ of the gap over the run, from 1,000 points on."""
    best, start = ends_of(rows[0].problem)
    found = []
    for name in dict.fromkeys(r.method for r in rows):
        mine = [r for r in rows if r.method == name]
        gaps = [min(max((r.loss - best) / (start - best), 1e-8), WORST) for r in mine if r.data_points >= 1000]
        full = max(len(gaps), round(math.log(budget / 1000) / math.log(ConvexProblem.spacing)))
        gaps += [WORST] * (full - len(gaps) if mine[-1].data_points < budget else 0)
        found.append(replace(mine[-1], metric=sum(map(math.log10, gaps)) / max(len(gaps), 1)))
    return found


def best(rows: Sequence[Row]) -> dict[str, Setting]:
    """The settings with the lowest scores of a tuning run."""
    return best_settings([r for r in rows if r.experiment == TUNING], lambda r: r.metric)


def tuned() -> dict[str, Setting]:
    """The settings that `infhess bench convex --tune` found, as shipped with the package."""
    return read_settings((files("infhess_bench.bench") / "tuned.json").read_text(encoding="utf-8"))


def cost_of_a_product(template: Row) -> list[Row]:
    """Seconds of a product over seconds of a gradient on the same batch: medians, for six products that share a graph."""
    p, g = convex_problem(template.problem), torch.Generator()
    model = p.model()
    loss, weight = p.loss(model), model.weight
    batch = next(iter(Shuffled(p.data, template.batch_size, g.manual_seed(0))))
    source = Hessian(loss, [weight], [batch])
    s = torch.randn(weight.numel(), dtype=weight.dtype, generator=g.manual_seed(0))

    def gradient() -> None:
        weight.grad = None
        loss(batch).backward()  # type: ignore[no-untyped-call]

    def products() -> None:
        local = source.local(batch)
        for _ in range(6):
            source.product(local, s)

    cheap, dear = median_seconds(gradient, REPEATS), median_seconds(products, REPEATS) / 6
    return [replace(template, seconds=dear, metric=dear / cheap)]


class Axes(harness.Axes):
    """Data points, work and seconds."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(r for r in rows if r.experiment == EXPERIMENT and r.method != COST)
        self.costs = {(r.problem, r.batch_size): r.metric for r in rows if r.method == COST}

    def value(self, axis: str, row: Row) -> float:
        """The cost of a row on a named axis; work is points of gradients, plus points of products at their cost."""
        work = row.data_points + self.costs.get((row.problem, row.batch_size), 0.0) * row.products * row.batch_size
        return {"data points": float(row.data_points), "work": work, "seconds": row.seconds}[axis]


def solver_curve(template: Row) -> list[Row]:
    """Loss by seconds: the solver restarted with twice as many iterations each time."""
    from sklearn.exceptions import ConvergenceWarning

    p, rows, name = convex_problem(template.problem), [], template.method.removeprefix("scikit-learn ")
    for iterations in (1, 2, 4, 8, 16, 32, 64, 128, 256) if applies(name, p) else ():
        solver = scikit_model(name, p, iterations, tolerance=1e-12)
        (x, y), model = (t.numpy() for t in p.data), p.model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            seconds = processor_seconds(partial(solver.fit, x, y))
        model.weight.data.copy_(torch.from_numpy(solver.coef_).reshape(model.weight.shape))
        rows.append(replace(template, data_points=iterations * len(x), seconds=seconds, loss=p.value(model)))
        if seconds > LONGEST:
            break
    return rows or [replace(template, loss=math.nan)]
