"""Nets, head to head: ours and the peers at an equal budget of gradients, and ours from any rate and in any units."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from json import loads

import torch
from torch import Tensor, nn
from torch.func import functional_call

from infhess.bench.deep_peers import AROUND, BASES, METHODS, OURS, missing, observed
from infhess.experiments.pieces import Piece
from infhess.experiments.rows import Row
from infhess.experiments.training import Method, Run, stops
from infhess.experiments.tuned import TUNING_SEED
from infhess.problems.deep import DEEP, FULL, NetProblem, net_problem
from infhess.problems.shuffled import Reading, Shuffled

EXPERIMENT, TUNING, STARTS, UNITS = "bench-deep", "bench-deep-tuning", "bench-deep-starts", "bench-deep-units"
RATES = (1e-6, 1e-4, 1e-2, 1.0, 1e2)
RATE = ": rate"  # rows of the rate in use: loss is the rate, metric the standard deviation of its logarithm
SCALES = (1e-3, 1.0, 1e3)
RESCALED = ("mnist-mlp", "cifar-net, Xavier")
QUICK = ("mnist-mlp", "text-transformer")


def names(only: Sequence[str] = (), *, quick: bool = False, full: bool = False) -> list[str]:
    """Problems of a size, or these."""
    return _among("problem", only, {**DEEP, **FULL}) or (list(QUICK) if quick else [*DEEP, *(FULL if full else ())])


def methods(only: Sequence[str] = ()) -> list[str]:
    """All that are installed, or these of them."""
    absent, chosen = missing(), _among("method", only, METHODS)
    for name in chosen:
        if name in absent:
            raise ValueError(f"--method: {name} is not installed; pip install '{absent[name]}'")
    return chosen or [m for m in METHODS if m not in absent]


def _among(what: str, given: Sequence[str], known: Iterable[str]) -> list[str]:
    for name in given:
        if name not in (names := list(known)):
            raise ValueError(f"--{what}: expected one of {'; '.join(names)}; got {name}")
    return list(dict.fromkeys(given))


def pieces(
    problems: Sequence[str], seeds: Sequence[int], chosen: Sequence[str] = (), *, steps: int = 0
) -> Iterator[Piece]:
    """Every method on every problem: at its default, and as tuned where it has a grid."""
    settings = tuned()
    for name in problems:
        for seed in seeds:
            for method in chosen or methods():
                values = {method: METHODS[method].default or 0.0}
                if f"{name}/{method}" in settings:
                    values[f"{method}, tuned"] = settings[f"{name}/{method}"]
                for title, value in values.items():
                    row = Row(EXPERIMENT, name, title, seed, net_problem(name).batch)
                    yield Piece(row.piece, f"{name}, seed {seed}: {title}", run, (row, method, value, steps))


def tuning(problems: Sequence[str], chosen: Sequence[str] = (), *, steps: int = 0) -> Iterator[Piece]:
    """The grids, on a seed that is not reported."""
    for name in problems:
        for method in chosen or methods():
            peer = METHODS[method]
            for value in sorted({*peer.grid, peer.default or 0.0}) if peer.grid else ():
                row = Row(TUNING, name, f"{method}: {value:g}", TUNING_SEED, net_problem(name).batch)
                yield Piece(row.piece, f"{name}: {method} at {value:g}", last, (row, method, value, steps))


def starts(
    problems: Sequence[str], seeds: Sequence[int], chosen: Sequence[str] = (), *, steps: int = 0
) -> Iterator[Piece]:
    """`Preconditioned` around each base, from rates over eight orders of magnitude."""
    for name in problems:
        for base in (b for b in BASES if AROUND[b] in (chosen or METHODS)):
            for rate in RATES:
                for seed in seeds:
                    row = Row(STARTS, name, f"{AROUND[base]}, from {rate:g}", seed, net_problem(name).batch)
                    yield Piece(row.piece, f"{name}, seed {seed}: {row.method}", start, (row, base, rate, steps))


def units(
    problems: Sequence[str], seeds: Sequence[int], chosen: Sequence[str] = (), *, steps: int = 0
) -> Iterator[Piece]:
    """`RateFree` with the loss, and with the weights, in other units."""
    for name in (n for n in problems if n in RESCALED and OURS in (chosen or METHODS)):
        for what in ("loss", "weights"):
            for scale in SCALES:
                for seed in seeds:
                    row = Row(UNITS, name, f"{what} × {scale:g}", seed, net_problem(name).batch)
                    yield Piece(row.piece, f"{name}, seed {seed}: {row.method}", rescaled, (row, what, scale, steps))


def run(template: Row, method: str, value: float, steps: int) -> list[Row]:
    """A curve: training objective and test loss; and the rate in use where the method tells."""
    return curve(net_problem(template.problem), METHODS[method].make(value), template, steps)


def last(template: Row, method: str, value: float, steps: int) -> list[Row]:
    """The end of such a curve."""
    return end(net_problem(template.problem), METHODS[method].make(value), template, steps)


def start(template: Row, base: str, rate: float, steps: int) -> list[Row]:
    """The end of a run from some rate."""
    return end(net_problem(template.problem), observed(base, rate), template, steps)


def rescaled(template: Row, what: str, scale: float, steps: int) -> list[Row]:
    """The end of a run of RateFree on the same problem in other units; the objective is given in the old ones."""
    problem = net_problem(template.problem)
    factor = scale if what == "loss" else 1.0
    there = replace(problem, loss_of=lambda f, y: factor * problem.loss_of(f, y), l2=factor * problem.l2)
    if what == "weights":
        there = replace(problem, net=lambda: InUnits(problem.net(), scale), l2=problem.l2 / scale**2)
    (row,) = end(there, METHODS[OURS].make(0.0), template, steps)
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


def end(problem: NetProblem, method: Method, template: Row, steps: int = 0) -> list[Row]:
    """The last row of a curve, and nothing on the way."""
    rows = curve(problem, method, template, steps, spacing=math.inf)
    return [[r for r in rows if not r.method.endswith(RATE)][-1]]


def curve(
    problem: NetProblem, method: Method, template: Row, steps: int = 0, spacing: float | None = None
) -> list[Row]:
    """Rows of one run until its budget of gradients is spent, products at their price. A net that is lost ends."""
    generator, rows = torch.Generator().manual_seed(template.seed), []
    reading = Reading(Shuffled(problem.data, problem.batch, generator), (steps or problem.steps) * problem.batch)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(template.seed)
        for state, seconds in stops(problem, method, reading, spacing):
            now = replace(
                template, data_points=reading.points, products=state.products, seconds=float(f"{seconds:.4g}")
            )
            model = state.models[""]
            value = _number(problem.value(model))
            rows += [replace(now, loss=value, metric=_number(problem.tested(model))), *_rates(state, now)]
            if not math.isfinite(value):
                break
    return rows


def _rates(state: Run, now: Row) -> list[Row]:
    rate = getattr(state, "rate", None)
    if rate is None or not rate[0] > 0:
        return []
    return [replace(now, method=now.method + RATE, loss=_number(rate[0]), metric=_number(rate[1]))]


def _number(x: float) -> float:
    return float(f"{x:.6g}") if math.isfinite(x) else math.inf


def best_settings(rows: Sequence[Row]) -> dict[str, float]:
    """For each problem and method the rate that ended lowest in the training objective."""
    found: dict[str, tuple[float, float]] = {}
    for r in rows:
        method, _, value = r.method.rpartition(": ")
        key = f"{r.problem}/{method}"
        if r.experiment == TUNING and (key not in found or r.loss < found[key][0]):
            found[key] = r.loss, float(value)
    return {key: value for key, (_, value) in found.items()}


def tuned() -> dict[str, float]:
    """The settings that `infhess bench deep --tune` found, as they come with the package."""
    return dict(loads((files("infhess.bench") / "tuned-deep.json").read_text(encoding="utf-8")))
