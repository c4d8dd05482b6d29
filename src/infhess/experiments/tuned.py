"""Runs on convex problems as pieces of work: a grid of rates on a seed of its own, then curves at the rate that it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infhess.experiments.curves import EXACT, START, thinned
from infhess.experiments.pieces import Piece
from infhess.experiments.rows import Row
from infhess.experiments.training import Method, curve
from infhess.problems.convex import problem, solution

TUNING_SEED = 1000
AVERAGED = ", averaged"


@dataclass(frozen=True)
class Size:
    """How much of an experiment."""

    name: str
    problems: tuple[str, ...]
    batches: tuple[int, ...]
    budget: int
    seeds: int
    rates: tuple[float, ...]


def rates(low: int, high: int) -> tuple[float, ...]:
    """10^(i/3) to two digits."""
    return tuple(float(f"{10 ** (i / 3):.2g}") for i in range(low, high))


def named(experiment: str, size: str) -> str:
    """The experiment's name in the rows: sizes are not mixed."""
    return experiment if size == "default" else f"{experiment}-{size}"


def piece(
    experiment: str,
    size: Size,
    name: str,
    method: str,
    seed: int,
    batch: int,
    call: Callable[..., list[Row]],
    *more: object,
) -> Piece:
    """A piece whose call takes a template of its rows, the budget of data points, and more."""
    template = Row(named(experiment, size.name), name, method, seed, batch)
    title = f"{name}, batch {batch}, seed {seed}: {method}" if batch else f"{name}: {method}"
    return Piece(template.piece, title, call, (template, size.budget, *more))


def ends(template: Row, budget: int) -> list[Row]:
    """The exact solution, which reads everything once, and the start."""
    p, best = problem(template.problem), solution(template.problem)
    n, start = len(p.data[0]), p.model()
    return [
        Row(template.experiment, template.problem, EXACT, 0, 0, n, 0, 0.0, p.value(best), p.tested(best)),
        Row(template.experiment, template.problem, START, 0, 0, 0, 0, 0.0, p.value(start), p.tested(start)),
    ]


def tuned_run(template: Row, budget: int, make: Callable[[float], Method], rate: float) -> list[Row]:
    """The end of a run at one rate, with and without averaging."""
    rows = curve(problem(template.problem), make(rate), template, budget)
    return [r for r in rows if r.data_points == rows[-1].data_points]


def run(template: Row, budget: int, make: Callable[[], Method], averaged: bool) -> list[Row]:
    """A curve of the last iterate or of the average."""
    return plain_run(template, budget, make(), 1, AVERAGED if averaged else "")


def plain_run(template: Row, budget: int, method: Method, longer: int = 1, only: str = "") -> list[Row]:
    """A curve of one of a method's models."""
    p, best = problem(template.problem), solution(template.problem)
    return thinned(curve(p, method, template, longer * budget, only), p.value(best), p.value(p.model()))


def chosen(rows: Sequence[Row], name: str, method: str, batch: int) -> tuple[float, bool]:
    """The rate whose run ended lowest, and whether averaging helped it."""
    tried = [r for r in rows if r.problem == name and r.batch_size == batch and r.method.startswith(f"{method}: rate ")]
    best = min(tried, key=lambda r: r.loss)
    return float(best.method.removesuffix(AVERAGED).rpartition(" ")[2]), best.method.endswith(AVERAGED)
