"""Runs of nets by their ends, and the targets beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from infhess.bench.deep_baselines import ADAM, AROUND, NO_RATE, SCHEDULE_FREE, SGD
from infhess.bench.deep_bench import EXPERIMENT, RATES, STARTS, UNITS
from infhess.harness.curves import Curves, listed
from infhess.harness.rows import Row
from infhess.harness.tables import Target, at_most
from infhess.harness.training import RATE
from infhess.problems.net_problems import NetProblem, net_problem

# Runs of so many steps are long enough for the bound on extra cost.
LONG, EXTRA = 1000, 0.06
# What `Preconditioned` around a base is to be level with.
RIVALS = {"Adam": ADAM, "momentum .9": "momentum .9, tuned", "sgd": f"{SGD}, tuned"}


class Nets:
    """Rows of one kind as runs, and what they end with."""

    def __init__(self, rows: Sequence[Row], seeds: Sequence[int]) -> None:
        self.rows = [r for r in rows if r.seed in seeds]
        self.curves = Curves([r for r in self.rows if r.experiment == EXPERIMENT])
        self.problems = list(dict.fromkeys(r.problem for r in self.curves.rows))

    def runs(self, name: str, method: str) -> list[list[Row]]:
        """One list of rows per seed."""
        return self.curves.runs(name, method, net_problem(name).batch)

    def methods(self, name: str) -> list[str]:
        """That were run."""
        return [m for m in self.curves.methods(name, net_problem(name).batch) if not m.endswith(RATE)]

    def ends(self, name: str, method: str) -> list[Row]:
        """The last row of each seed."""
        return [run[-1] for run in self.runs(name, method)]

    def objective(self, name: str, method: str) -> float:
        """At the end, the mean over seeds; infinite where a run was lost, NaN where there is none."""
        return mean_of(r.loss for r in self.ends(name, method))

    def tested(self, name: str, method: str) -> float:
        """The test loss, likewise."""
        return mean_of(r.metric for r in self.ends(name, method))

    def first(self, name: str) -> float:
        """The objective at the first row of a run, whatever the method: all begin with the same weights."""
        return self.runs(name, self.methods(name)[0])[0][0].loss

    def from_rates(self, name: str, base: str) -> list[list[Row]]:
        """The ends of runs around a base, by the rate that it was made with."""
        return [self.of(STARTS, name, f"{AROUND[base]}, from {rate:g}") for rate in RATES]

    def of(self, experiment: str, name: str, method: str) -> list[Row]:
        """Rows of another experiment, one per seed."""
        return [r for r in self.rows if (r.experiment, r.problem, r.method) == (experiment, name, method)]


def mean_of(values: Iterable[float]) -> float:
    """NaN where there are none."""
    found = list(values)
    return fmean(found) if found else math.nan


def noise(found: Sequence[Sequence[Row]]) -> float:
    """The standard deviation over seeds, pooled over rates or methods."""
    spreads = [stdev(r.loss for r in rows) for rows in found if len(rows) > 1 and all(r.loss < math.inf for r in rows)]
    return fmean(s**2 for s in spreads) ** 0.5 if spreads else math.nan


def targets(nets: Nets) -> list[Target]:
    """The goals, and what was measured."""
    found = []
    for what, measure in (("training objective", nets.objective), ("test loss", nets.tested)):
        for rival, bound in ((ADAM, 0), (SCHEDULE_FREE, 1)):
            both = [n for n in nets.problems if {NO_RATE, rival} <= set(nets.methods(n))]
            behind = [n for n in both if not measure(n, NO_RATE) < measure(n, rival)]
            title = f"problems of {len(both)} where RateFree is behind {rival}'s default in {what}"
            found += [_none_of(title, behind, bound)] if both else []
    return [*found, *_costs(nets), *_units(nets), *_starts(nets)]


def _none_of(what: str, names: Sequence[str], most: int = 0) -> Target:
    return at_most(f"{what} ({listed(names)})" if names else what, len(names), most)


def _costs(nets: Nets) -> list[Target]:
    """In long runs: products at their price over gradients, and seconds per data point over those of Adam."""
    found = []
    for name in nets.problems:
        mine, adam = nets.ends(name, NO_RATE), nets.ends(name, ADAM)
        if not (mine and adam) or not all(r.data_points >= LONG * r.batch_size for r in adam):
            continue
        extra = fmean(NetProblem.price * r.products * r.batch_size / r.data_points for r in mine)
        found.append(at_most(f"{name}: extra gradients of RateFree", extra, EXTRA))
        seconds = fmean(r.seconds / r.data_points for r in mine) / fmean(r.seconds / r.data_points for r in adam) - 1
        found.append(at_most(f"{name}: extra seconds of RateFree over Adam", seconds, EXTRA))
    return found


def _units(nets: Nets) -> list[Target]:
    """Objective with the loss or the weights in other units over that in the usual ones, at worst."""
    found = []
    for name in nets.problems:
        for what in ("loss", "weights"):
            usual = [r.loss for r in nets.of(UNITS, name, f"{what} × 1")]
            other = [r.loss for s in ("0.001", "1000") for r in nets.of(UNITS, name, f"{what} × {s}")]
            if usual and other:
                worst = max(other) / fmean(usual)
                found.append(
                    at_most(f"{name}: objective with {what} × 1e-3 or 1e3 over the usual, at worst", worst, 1.5)
                )
    return found


def _starts(nets: Nets) -> list[Target]:
    """From any rate: none lost, rates within the noise of seeds, and level with the rival."""
    found = []
    for base, rival in RIVALS.items():
        rows = {n: nets.from_rates(n, base) for n in nets.problems}
        rows = {n: runs for n, runs in rows.items() if all(len(run) > 1 for run in runs)}  # one seed has no noise
        if not rows:
            continue
        lost = sum(not r.loss < nets.first(n) for n, runs in rows.items() for run in runs for r in run)
        found.append(at_most(f"around {base}: runs lost, of {sum(len(r) for v in rows.values() for r in v)}", lost, 0))
        apart = [n for n, runs in rows.items() if not _spread(runs) <= 2 * noise(runs)]
        found.append(_none_of(f"around {base}: problems where rates differ by over two deviations of seeds", apart))
        both = {n: runs for n, runs in rows.items() if rival in nets.methods(n)}
        behind = [n for n, runs in both.items() if not _mean(runs) <= nets.objective(n, rival) + 2 * noise(runs)]
        title = f"around {base}: problems where it is not level with {rival}"
        found += [_none_of(title, behind)] if both else []
    return found


def _mean(runs: Sequence[Sequence[Row]]) -> float:
    return fmean(r.loss for run in runs for r in run)


def _spread(runs: Sequence[Sequence[Row]]) -> float:
    """The largest difference of a rate from the mean of all."""
    return max(abs(fmean(r.loss for r in run) - _mean(runs)) for run in runs)
