"""`Preconditioned.observe` around SGD, momentum and Adam from any rate, next to tuned rivals; and what directions add."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from infhess_bench.bench.deep_baselines import ADAM, AROUND, BASES, METHODS, RANK, RANKED, SGD
from infhess_bench.bench.deep_bench import EXPERIMENT, Selection
from infhess_bench.harness import Cells, Job, Row, Setting, Target, at_most, ends, target_cells, written
from infhess_bench.harness.comparison import Comparison, best_settings, read_settings
from infhess_bench.problems.net_sets import net_problem

TUNING, STARTS = "bench-deep-tuning", "bench-deep-starts"
RATES = (1e-6, 1e-4, 1e-2, 1.0, 1e2)
# The rival that `Preconditioned` around a base should equal.
RIVALS = {"Adam": ADAM, "momentum .9": "momentum .9, tuned", "sgd": f"{SGD}, tuned"}


def tuning(chosen: Selection) -> Iterator[Job]:
    """The tuning grids, on a seed that is not reported."""
    return Comparison(TUNING, net_problem, ends, math.inf).tuning(chosen.cells(), chosen.table())


def jobs(chosen: Selection) -> Iterator[Job]:
    """Every method at its default and as tuned; and around each base from rates over eight orders of magnitude."""
    yield from Comparison(EXPERIMENT, net_problem).jobs(chosen.cells(), chosen.table(), chosen.seeds, tuned())
    comparison = Comparison(STARTS, net_problem, ends, math.inf)
    around = [AROUND[base] for base in BASES if AROUND[base] in chosen.table()]
    for cell, method, rate, seed in product(chosen.cells(), around, RATES, chosen.seeds):
        yield comparison.job(cell, f"{method}, from {rate:g}", METHODS[method].make, Setting(rate), seed)


def best(rows: Sequence[Row]) -> dict[str, Setting]:
    """The rates with the lowest training objective at the end."""
    return best_settings([r for r in rows if r.experiment == TUNING], lambda r: r.loss)


def tuned() -> dict[str, Setting]:
    """The settings that `infhess bench deep --tune` found, as shipped with the package."""
    return read_settings((files("infhess_bench.bench") / "tuned-deep.json").read_text(encoding="utf-8"))


class Ends:
    """The first and last objectives of runs."""

    def __init__(self, rows: Sequence[Row], seeds: Sequence[int]) -> None:
        self.problems, kept = list(dict.fromkeys(row.problem for row in rows)), [r for r in rows if r.seed in seeds]
        self.first = {row.problem: row.loss for row in reversed(kept)}  # all start from the same weights
        self._last = {(row.problem, row.method, row.seed): row.loss for row in kept}

    def of(self, problem: str, method: str) -> list[float]:
        """Objectives at the end, one per seed."""
        return [loss for (p, m, _), loss in self._last.items() if (p, m) == (problem, method)]

    def from_rates(self, problem: str, base: str) -> list[list[float]]:
        """The same around a base, by the rate that the base was made with."""
        return [self.of(problem, f"{AROUND[base]}, from {rate:g}") for rate in RATES]


def noise(found: Sequence[Sequence[float]]) -> float:
    """The standard deviation over seeds, pooled over rates or methods."""
    spreads = [stdev(run) for run in found if len(run) > 1 and all(map(math.isfinite, run))]
    return fmean(s**2 for s in spreads) ** 0.5 if spreads else math.nan


def targets(ends: Ends) -> list[Target]:
    """Goals from any rate: no run lost, rates within the noise of seeds, and level with the rival."""
    found = []
    for base, rival in RIVALS.items():
        runs = {n: ends.from_rates(n, base) for n in ends.problems}
        runs = {n: of for n, of in runs.items() if all(len(run) > 1 for run in of)}  # one seed has no noise
        if not runs:
            continue
        lost = [x for n, of in runs.items() for run in of for x in run if not x < ends.first[n]]
        total = sum(len(run) for of in runs.values() for run in of)
        found.append(at_most(f"around {base}: runs lost, of {total}", len(lost), 0))
        means = {n: fmean(map(fmean, of)) for n, of in runs.items()}
        apart = [n for n, of in runs.items() if not max(abs(fmean(r) - means[n]) for r in of) <= 2 * noise(of)]
        found.append(_none_of(f"around {base}: problems where rates differ by over two deviations of seeds", apart))
        rivals = {n: ends.of(n, rival) for n in runs}
        behind = [n for n, x in rivals.items() if x and not means[n] <= fmean(x) + 2 * noise(runs[n])]
        if any(rivals.values()):
            found.append(_none_of(f"around {base}: problems where it is not level with {rival}", behind))
    return found


def _none_of(what: str, names: Sequence[str]) -> Target:
    return at_most(f"{what} ({', '.join(names)})" if names else what, len(names), 0)


def from_any_rate(ends: Ends) -> Cells:
    """Objective at the end by the rate that the base was made with: mean over seeds."""
    lines = [["problem, base", *(f"{r:g}" for r in RATES), "seeds differ by", "rival"]]
    for name, (base, rival) in product(ends.problems, RIVALS.items()):
        found = ends.from_rates(name, base)
        if any(found):
            beside = f"{rival} {_mean(ends.of(name, rival))}"
            lines.append([f"{name}, {base}", *map(_mean, found), _shown(noise(found)), beside])
    return lines


def directions(ends: Ends) -> Cells:
    """What a low-rank preconditioner adds to the step length alone."""
    lines = [["problem", "the step length alone", f"with {RANK} directions per layer", "directions"]]
    for name in ends.problems:
        alone, beside = both = [ends.of(name, m) for m in (AROUND["sgd"], RANKED)]
        if alone and beside:
            gain, least = fmean(alone) - fmean(beside), 2 * noise(both)
            word = "add nothing" if abs(gain) <= least else "help" if gain > 0 else "cost more"
            lines.append([name, *map(_mean, both), "–" if math.isnan(least) else word])
    return lines


def _mean(found: Sequence[float]) -> str:
    return _shown(fmean(found)) if found else "–"


def _shown(x: float) -> str:
    return "lost" if math.isinf(x) else "–" if math.isnan(x) else f"{x:.3g}" if abs(x) < 10 else f"{x:.1f}"


def report(rows: Sequence[Row], seeds: Sequence[int], folder: Path) -> str:
    """starts.md, rank.md and targets.md; returns them."""
    ends = Ends(rows, seeds)
    return written(folder, starts=from_any_rate(ends), rank=directions(ends), targets=target_cells(targets(ends)))
