"""Nets, head to head: infhess and the alternatives at an equal budget of gradients; infhess from any rate and in any units."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from infhess.bench.deep_baselines import AROUND, BASES, METHODS, NO_RATE
from infhess.harness import Baseline, Job, Row, Setting, curve, missing
from infhess.harness.comparison import Cell, Comparison, best_settings, read_settings
from infhess.harness.training import ends
from infhess.problems.held_out import HELD_OUT, net_problem
from infhess.problems.net_problems import DEEP, FULL

EXPERIMENT, TUNING, STARTS, UNITS = "bench-deep", "bench-deep-tuning", "bench-deep-starts", "bench-deep-units"
RATES = (1e-6, 1e-4, 1e-2, 1.0, 1e2)
SCALES = (1e-3, 1.0, 1e3)
RESCALED = ("mnist-mlp", "cifar-net, Xavier")
QUICK = ("mnist-mlp", "text-transformer")


def names(only: Sequence[str] = (), *, quick: bool = False, full: bool = False) -> list[str]:
    """Problems of a size, or these."""
    return _among("problem", only, {**DEEP, **FULL, **HELD_OUT}) or (
        list(QUICK) if quick else [*DEEP, *(FULL if full else ())]
    )


def methods(only: Sequence[str] = ()) -> list[str]:
    """All that are installed, or these of them."""
    absent, chosen = missing(METHODS), _among("method", only, METHODS)
    for name in chosen:
        if name in absent:
            raise ValueError(f"--method: {name} is not installed; pip install '{absent[name]}'")
    return chosen or [m for m in METHODS if m not in absent]


def _among(what: str, given: Sequence[str], known: Iterable[str]) -> list[str]:
    for name in given:
        if name not in (names := list(known)):
            raise ValueError(f"--{what}: expected one of {'; '.join(names)}; got {name}")
    return list(dict.fromkeys(given))


class Selection(NamedTuple):
    """Which part of the bench: all installed methods where none are named, budgets of their own where steps are 0."""

    problems: Sequence[str]
    seeds: Sequence[int] = ()
    methods: Sequence[str] = ()
    steps: int = 0

    def table(self) -> dict[str, Baseline]:
        """The methods."""
        return {m: METHODS[m] for m in self.methods or methods()}

    def cells(self) -> list[Cell]:
        """The problems, each with its own batch size and budget, or one of so many gradients."""
        found = {name: net_problem(name) for name in self.problems}
        return [Cell(name, p.batch, (self.steps or p.steps) * p.batch) for name, p in found.items()]


def jobs(chosen: Selection) -> Iterator[Job]:
    """Every method on every problem: as it comes, and as tuned where it has a grid."""
    return Comparison(EXPERIMENT, net_problem).jobs(chosen.cells(), chosen.table(), chosen.seeds, tuned())


def every_rate(chosen: Selection) -> Iterator[Job]:
    """Every method on every problem, at each rate of its grid where it has one: none is tuned on another seed."""
    comparison = Comparison(EXPERIMENT, net_problem)
    for cell, (name, baseline), seed in product(chosen.cells(), chosen.table().items(), chosen.seeds):
        for value in baseline.tried() or [baseline.default or 0.0]:
            title = f"{name}, {value:g}" if baseline.grid else name
            yield comparison.job(cell, title, baseline.make, Setting(value), seed)


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


class InUnits(nn.Module):
    """The same function of weights that are `scale` times as large."""

    def __init__(self, net: nn.Module, scale: float) -> None:
        super().__init__()
        self.net, self.scale = net, scale
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        """With the weights divided again."""
        weights = {name: p / self.scale for name, p in self.net.named_parameters()}
        found: Tensor = functional_call(self.net, weights, (x,))
        return found


def best(rows: Sequence[Row]) -> dict[str, Setting]:
    """The rates that ended lowest in the training objective."""
    return best_settings([r for r in rows if r.experiment == TUNING], lambda r: r.loss)


def tuned() -> dict[str, Setting]:
    """The settings that `infhess bench deep --tune` found, as they come with the package."""
    return read_settings((files("infhess.bench") / "tuned-deep.json").read_text(encoding="utf-8"))
