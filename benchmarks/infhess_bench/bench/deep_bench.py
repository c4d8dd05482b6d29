"""Nets, head to head: infhess and the alternatives at an equal budget of gradients, each at all rates of its grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

from infhess_bench.bench.deep_baselines import (
    AROUND,
    BASES,
    COMPARED,
    COSINE,
    METHODS,
    MUON,
    RANKED,
    ROTATED,
    SOAP,
    decades,
)
from infhess_bench.harness import BESIDE, Baseline, Cell, Comparison, Curves, Job, Row, Setting, missing
from infhess_bench.problems.net_sets import SETS, SLOW, longer, net_problem

EXPERIMENT = "bench-deep"
Names = Sequence[str]
QUICK = ("mnist-mlp", "text-transformer")


class Usual(NamedTuple):
    """What a comparison runs by default: problems, sets of them, methods, and methods at their defaults only."""

    problems: Names = ()
    sets: Names = ()
    methods: Names = COMPARED
    as_they_come: Names = ()


STARTED = Usual(sets=["development"], methods=(*AROUND.values(), RANKED, *BASES))
USUAL = {
    "starts": STARTED,
    "tune": STARTED,
    "large": Usual(sets=["large"], methods=(ROTATED, COSINE, MUON, SOAP), as_they_come=(MUON, SOAP)),
    "variants": Usual(("mnist-cnn", "mnist-mlp", "cifar-net, Xavier", "text-transformer")),
    "batches": Usual(("mnist-cnn", "sarcos-mlp", "text-transformer")),
}


def names(only: Sequence[str] = (), sets: Sequence[str] = (), lengths: Sequence[int] = (1,)) -> list[str]:
    """These problems, or those of these sets, or all except the slow ones; at each length."""
    chosen = _among("problem", only, [name for problems in SETS.values() for name in problems])
    titles = _among("set", sets, SETS) or ([] if chosen else [title for title in SETS if title not in SLOW])
    chosen += [name for title in titles for name in SETS[title]]
    return [longer(name, length) for length in dict.fromkeys(lengths) for name in dict.fromkeys(chosen)]


def methods(only: Sequence[str] = (), usual: Sequence[str] = COMPARED) -> list[str]:
    """These methods, or all of the usual ones that are installed."""
    absent, chosen = missing(METHODS), _among("method", only, METHODS)
    for name in chosen:
        if name in absent:
            raise ValueError(f"--method: {name} is not installed; pip install '{absent[name]}'")
    return chosen or [m for m in usual if m not in absent]


def _among(what: str, given: Sequence[str], known: Iterable[str]) -> list[str]:
    for name in given:
        if name not in (names := list(known)):
            raise ValueError(f"--{what}: expected one of {'; '.join(names)}; got {name}")
    return list(dict.fromkeys(given))


class Selection(NamedTuple):
    """Which part of the bench to run: all installed methods if none are named, each problem's own budget if steps are 0."""

    problems: Sequence[str]
    seeds: Sequence[int] = ()
    methods: Sequence[str] = ()
    steps: int = 0
    as_they_come: Sequence[str] = ()  # only at their defaults

    def table(self) -> dict[str, Baseline]:
        """The methods."""
        return {m: METHODS[m] for m in self.methods or methods()}

    def cells(self) -> list[Cell]:
        """The problems, each with its own batch size, and its own budget or one of this many gradients."""
        found = {name: net_problem(name) for name in self.problems}
        return [Cell(name, p.batch, (self.steps or p.steps) * p.batch) for name, p in found.items()]


def selection(
    kind: str, problem: Names, sets: Names, method: Names, lengths: Sequence[int], *, quick: bool
) -> Selection:
    """What was chosen, or else the default for this kind of comparison."""
    usual = USUAL.get(kind, Usual())
    usual = usual._replace(problems=QUICK, sets=()) if quick and not usual.as_they_come else usual
    given = (problem, sets) if problem or sets else (usual.problems, usual.sets)
    found, used = names(*given, lengths), methods(method, usual.methods)
    return Selection(found, (), used, 100 if quick else 0, usual.as_they_come)


def chosen_rows(chosen: Selection, row: Row) -> bool:
    """Whether a row belongs to a chosen run: its problem, its seed, its method at any rate."""
    title = next((row.method.removesuffix(end) for end in BESIDE if row.method.endswith(end)), row.method)
    mine = row.problem in chosen.problems and row.seed in chosen.seeds
    return mine and method_of(title) in chosen.methods


@cache
def method_of(title: str) -> str:
    """The method without its rate."""
    return next(m for m in sorted(METHODS, key=len, reverse=True) if title == m or title.startswith(f"{m}, "))


def at_rate(method: str, rate: float) -> str:
    """The name of a method at one of its rates."""
    return f"{method}, {rate:g}" if METHODS[method].grid else method


def jobs(chosen: Selection) -> Iterator[Job]:
    """Every method on every problem, at each rate of its grid."""
    for cell, (method, baseline), seed in product(chosen.cells(), chosen.table().items(), chosen.seeds):
        tried = [] if method in chosen.as_they_come else baseline.tried()
        for rate in tried or [baseline.default or 0.0]:
            yield _job(cell, method, rate, seed)


def beyond(chosen: Selection, rows: Sequence[Row]) -> Iterator[Job]:
    """One more rate if a method does best at an edge of its grid: a decade further in that direction."""
    curves = Curves([row for row in rows if row.seed in chosen.seeds])
    for cell, (method, baseline) in product(chosen.cells(), chosen.table().items()):
        if (rates := baseline.tried()) and method not in chosen.as_they_come:
            best = min(rates, key=lambda rate: _end(curves, cell, at_rate(method, rate)))
            if best in (rates[0], rates[-1]):
                further = decades(best, -1 if best == rates[0] else 1)
                yield from (_job(cell, method, further, seed) for seed in chosen.seeds)


def _end(curves: Curves, cell: Cell, title: str) -> float:
    runs = curves.runs(cell.problem, title, cell.batch)
    return sum(run[-1].loss for run in runs) if runs else math.inf


def _job(cell: Cell, method: str, rate: float, seed: int) -> Job:
    make = METHODS[method].make
    return Comparison(EXPERIMENT, net_problem).job(cell, at_rate(method, rate), make, Setting(rate), seed)
