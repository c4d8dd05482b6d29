"""Convex problems, head to head: ours and the peers, in data points read, in work, and in seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from json import loads
from statistics import median

import torch

from infhess.bench.convex_peers import METHODS, OURS
from infhess.bench.optimizers import AVERAGED
from infhess.curvature import Hessian
from infhess.experiments.curves import EXACT, Curves
from infhess.experiments.pieces import Piece
from infhess.experiments.rows import Row
from infhess.experiments.training import curve
from infhess.experiments.tuned import TUNING_SEED, ends, plain_run
from infhess.problems.convex import ConvexProblem, problem
from infhess.problems.shuffled import Shuffled

EXPERIMENT, TUNING, STABILITY = "bench-convex", "bench-convex-tuning", "bench-convex-stability"
COST = "cost of a product"
BUDGETS = {
    "sarcos-map": 200_000,
    "sarcos-nat": 200_000,
    "mnist-3v5": 200_000,
    "digits": 100_000,
    "breast-cancer": 60_000,
}
QUICK = {"digits": 30_000, "breast-cancer": 20_000}
BATCHES = (32, 256)
STABLE_BATCHES, STABLE_BUDGET = (8, 32, 128, 512), 40_000
# Runs that are not from the start: scikit-learn's solvers, in seconds alone.
LIBRARY = ("scikit-learn saga", "scikit-learn lbfgs")
WORST = 1e3


@dataclass(frozen=True)
class Setting:
    """What a method is run with: a value, and which of its outcomes counts."""

    value: float
    model: str


def pieces(
    seeds: Sequence[int], budgets: dict[str, int], *, settings: dict[str, Setting] | None = None
) -> Iterator[Piece]:
    """Every method on every problem and batch size: with its default where it has one, and as tuned."""
    chosen = settings if settings is not None else tuned()
    for name, budget in budgets.items():
        yield Piece(
            Row(EXPERIMENT, name, EXACT).piece, f"{name}: exact solution", ends, (Row(EXPERIMENT, name, EXACT), 0)
        )
        for batch in BATCHES:
            cost = Row(EXPERIMENT, name, COST, 0, batch)
            yield Piece(cost.piece, f"{name}, batch {batch}: {COST}", cost_of_a_product, (cost,))
            for method in METHODS:
                for title, setting in _settings(chosen, name, batch, method):
                    for seed in seeds:
                        row = Row(EXPERIMENT, name, title, seed, batch)
                        label = f"{name}, batch {batch}, seed {seed}: {title}"
                        yield Piece(row.piece, label, run, (row, budget, method, setting))
        for method in LIBRARY:
            row = Row(EXPERIMENT, name, method, seeds[0], 0)
            yield Piece(row.piece, f"{name}: {method}", library_run, (row, method))


def _settings(chosen: dict[str, Setting], name: str, batch: int, method: str) -> Iterator[tuple[str, Setting]]:
    peer = METHODS[method]
    if peer.missing:
        return
    if not peer.grid:
        yield method, Setting(0.0, peer.models[0])
        return
    best = chosen.get(f"{name}/{batch}/{method}")
    if best:
        yield f"{method}, tuned", best
    if peer.default is not None:
        yield f"{method}, default", Setting(peer.default, peer.models[-1] if not best else best.model)


def tuning(budgets: dict[str, int]) -> Iterator[Piece]:
    """The grids, on a seed that is not reported, at half the budget."""
    for name, budget in budgets.items():
        for batch in BATCHES:
            for method, peer in METHODS.items():
                values = (
                    ()
                    if peer.missing
                    else sorted({*peer.grid, *([peer.default] if peer.default and peer.grid else [])})
                )
                for value in values:
                    row = Row(TUNING, name, f"{method}: {value:g}", TUNING_SEED, batch)
                    label = f"{name}, batch {batch}: {method} at {value:g}"
                    yield Piece(row.piece, label, tuning_run, (row, budget // 2, method, value))


def stability(seeds: Sequence[int], budgets: dict[str, int]) -> Iterator[Piece]:
    """Ours over batch sizes, to count divergences."""
    for name in budgets:
        for batch in STABLE_BATCHES:
            for seed in seeds:
                row = Row(STABILITY, name, OURS, seed, batch)
                label = f"{name}, batch {batch}, seed {seed}: does it stay"
                yield Piece(row.piece, label, stable_run, (row, min(budgets[name], STABLE_BUDGET)))


def run(template: Row, budget: int, method: str, setting: Setting) -> list[Row]:
    """A curve."""
    return plain_run(template, budget, METHODS[method].make(setting.value), 1, setting.model)


def stable_run(template: Row, budget: int) -> list[Row]:
    """The end of a run of ours; the metric is the loss at the start, above which it has diverged."""
    p = problem(template.problem)
    rows = curve(p, METHODS[OURS].make(0.0), template, budget, AVERAGED)
    return [replace(rows[-1], metric=p.value(p.model()))]


def tuning_run(template: Row, budget: int, method: str, value: float) -> list[Row]:
    """The score of a setting, a row for each outcome: the mean of log₁₀ of the gap over the run, from 1,000 points on."""
    peer = METHODS[method]
    rows = curve(problem(template.problem), peer.make(value), template, budget)
    best, start = (r.loss for r in _ends(template.problem))
    scored = []
    for name in peer.models:
        mine = [r for r in rows if r.method == template.method + name]
        gaps = [min(max((r.loss - best) / (start - best), 1e-8), WORST) for r in mine if r.data_points >= 1000]
        full = max(len(gaps), round(math.log(budget / 1000) / math.log(ConvexProblem.spacing)))
        gaps += [WORST] * (full - len(gaps) if mine[-1].data_points < budget else 0)
        scored.append(replace(mine[-1], metric=sum(map(math.log10, gaps)) / max(len(gaps), 1)))
    return scored if scored[0].method == template.method else [replace(scored[0], method=template.method), *scored]


@lru_cache(maxsize=8)
def _ends(name: str) -> list[Row]:
    return ends(Row(EXPERIMENT, name, EXACT), 0)


def best_settings(rows: Sequence[Row]) -> dict[str, Setting]:
    """For each problem, batch size and method the setting with the lowest score."""
    found: dict[str, tuple[float, Setting]] = {}
    for r in rows:
        if r.experiment != TUNING:
            continue
        model = AVERAGED if r.method.endswith(AVERAGED) else ""
        method, _, value = r.method.removesuffix(AVERAGED).rpartition(": ")
        key = f"{r.problem}/{r.batch_size}/{method}"
        if key not in found or r.metric < found[key][0]:
            found[key] = r.metric, Setting(float(value), model)
    return {key: setting for key, (_, setting) in found.items()}


def tuned() -> dict[str, Setting]:
    """The settings that `infhess bench convex --tune` found, as they come with the package."""
    text = (files("infhess.bench") / "tuned.json").read_text(encoding="utf-8")
    return {key: Setting(value, model) for key, (value, model) in loads(text).items()}


def cost_of_a_product(template: Row, repeats: int = 41) -> list[Row]:
    """Seconds of a product over seconds of a gradient on the same batch: medians, for six products that share a graph."""
    p, name = problem(template.problem), template.problem
    model = p.model()
    loss = p.loss(model)
    batch = next(iter(Shuffled(p.data, template.batch_size, torch.Generator().manual_seed(0))))
    source = Hessian(loss, [model.weight], [batch])
    s = torch.randn(model.weight.numel(), dtype=model.weight.dtype, generator=torch.Generator().manual_seed(0))

    def gradient() -> None:
        model.weight.grad = None
        loss(batch).backward()  # type: ignore[no-untyped-call]

    def products() -> None:
        local = source.local(batch)
        for _ in range(6):
            source.product(local, s)

    cheap, dear = _median_seconds(gradient, repeats), _median_seconds(products, repeats) / 6
    return [Row(EXPERIMENT, name, COST, 0, template.batch_size, seconds=dear, metric=dear / cheap)]


def _median_seconds(call: Callable[[], None], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


def library_run(template: Row, method: str) -> list[Row]:
    """scikit-learn's own solver from the start, with twice as many iterations each time: loss by seconds."""
    from infhess.bench.library import solved

    p = problem(template.problem)
    model, rows, n = p.model(), [], len(p.data[0])
    for iterations in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        found = solved(p, method.removeprefix("scikit-learn "), iterations)
        if found is None:
            break
        weights, seconds = found
        model.weight.data.copy_(weights)
        rows.append(replace(template, data_points=iterations * n, seconds=seconds, loss=p.value(model)))
        if seconds > 20:
            break
    return rows or [replace(template, loss=math.nan)]


class Axes:
    """Curves with the three axes on which methods are compared."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.curves = Curves([r for r in rows if r.experiment == EXPERIMENT and r.method != COST])
        self.costs = {(r.problem, r.batch_size): r.metric for r in rows if r.method == COST}

    def work(self, row: Row) -> float:
        """Points of gradients, and of products at their cost."""
        return row.data_points + self.costs.get((row.problem, row.batch_size), 0.0) * row.products * row.batch_size

    def value(self, axis: str, row: Row) -> float:
        """By the name of an axis."""
        return {"data points": float(row.data_points), "work": self.work(row), "seconds": row.seconds}[axis]

    def to(self, axis: str, name: str, method: str, batch: int, gap: float) -> float:
        """The median over seeds of what it took to reach a gap; infinite where it was not reached."""
        runs = self.curves.runs(name, method, batch)
        first = [next((r for r in run if self.curves.gap(r) <= gap), None) for run in runs]
        return median(self.value(axis, r) if r else math.inf for r in first) if first else math.nan
