"""Rounds of directions, each with more data than the last, until intervals are as narrow as asked for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from infhess.curvature import BatchSource, Source
from infhess.curvature.frozen import Whole, whole
from infhess.curvature.selection import Layer, products_of_layers
from infhess.spectra.held import CHUNKS
from infhess.spectra.krylov import Krylov
from infhess.spectra.ritz import Ritz, ritz

NOT_FINITE = "a product holds NaN or infinity; is the loss finite at these parameters?"
UNKNOWN = (
    "nothing is known of the noise, so std and intervals are NaN: the loss is random (dropout) and all of the data is one "
    "batch that is not cut; pass several batches"
)


@dataclass(frozen=True)
class Plan:
    """The request: k values to a tolerance within a budget of points; data per direction, directions, and memory for them."""

    k: int
    rtol: float | None
    budget: int
    data: tuple[int, int]  # least points and batches per direction
    span: tuple[int, int]  # least and largest number of directions
    memory: int | None = None


class Task(NamedTuple):
    """A matrix, what is wanted of it, and the first direction."""

    source: Source
    plan: Plan
    start: Tensor


@dataclass(frozen=True)
class Round:
    """Directions, their Ritz pairs, the top k vectors, and why the rounds stop here (or continue)."""

    krylov: Krylov
    errors: Ritz
    vectors: Tensor
    number: int
    stopped: str
    grown: int = 0  # data per direction of a further round


class Cost:
    """What a source has computed since this was made."""

    def __init__(self, source: Source) -> None:
        self.source, self.products_before, self.points_before = source, source.products, source.data_points

    @property
    def products(self) -> int:
        """Products computed."""
        return self.source.products - self.products_before

    @property
    def data_points(self) -> int:
        """Data points read."""
        return self.source.data_points - self.points_before


def rounds(task: Task) -> Iterator[Round]:
    """Only the last round counts: pooling rounds, whose number depends on the data, would be biased."""
    source, plan, start = task
    cost, number = Cost(source), 0
    population = source.stream.population if isinstance(source, BatchSource) else None
    while True:
        number += 1
        least, most = plan.span
        if population is not None and plan.data[0] >= population and least < most:
            most *= 2  # without noise only more directions improve values, so more are allowed
        (krylov,) = explore([Task(source, replace(plan, span=(least, most)), start)])
        found = as_round(krylov, plan, cost, number, population)
        yield found
        if found.stopped != "goes on":
            return
        plan, start = replace(plan, data=(found.grown, plan.data[1])), found.vectors.sum(1)


def as_round(krylov: Krylov, plan: Plan, cost: Cost, number: int = 1, population: int | None = None) -> Round:
    """The Ritz pairs of these directions, and whether they call for a further round."""
    errors = ritz(krylov)
    vectors = krylov.Q[: len(krylov)].mT @ errors.weights[:, : plan.k].to(krylov.Q)
    width = width_of(errors, plan.k)
    grown = grown_data(krylov.points[0] or plan.data[0], width, plan.rtol, population)
    everything = bool((krylov.population_factor[: len(krylov)] == 0).all())
    stopped = why(width, plan.rtol, everything, cost, plan.budget, len(krylov) * grown)
    return Round(krylov, errors, vectors, number, stopped, grown)


def explore(tasks: Sequence[Task]) -> list[Krylov]:
    """Add directions to each until its top k Ritz values are as good as their noise allows, within `plan.span`.

    Several tasks are for layers of one source: each step reads its data once for all of them. If `plan.data`, which each
    direction is averaged over, is all of the data of a single task, it is kept, and this is Lanczos on the full data.
    """
    source, plan, _ = tasks[0]
    limit = () if plan.memory is None else (plan.memory,)
    held = whole(source, plan.data[0], *limit) if len(tasks) == 1 else None
    with ExitStack() as files:
        live = list[tuple[Task, Krylov]]()
        for task in tasks:
            most = min(max(task.plan.span[1], task.plan.k), task.source.size)
            krylov = Krylov(task.start, most, task.plan.k, task.plan.memory, exact=held is not None)
            files.callback(krylov.close)
            live.append((task, krylov))
        found = [krylov for _, krylov in live]
        while live:
            room = _step(live, held)
            live = [one for one, more in zip(live, room) if more and not _is_enough(*one)]
        for krylov in found:
            krylov.fill()
    if not all(krylov.noise_is_known for krylov in found):
        warnings.warn(UNKNOWN, stacklevel=2)
    return found


def _step(live: Sequence[tuple[Task, Krylov]], held: Whole | None) -> list[bool]:
    """Add one direction to each; whether there is room for another."""
    source, plan, _ = live[0][0]
    if len(live) == 1:
        return [live[0][1].multiply(source, *plan.data, held)]
    before = source.data_points
    layers = [(cast(Layer, task.source), krylov.direction) for task, krylov in live]
    draws = products_of_layers(layers, plan.data[0], CHUNKS, plan.data[1])
    read = source.data_points - before
    return [krylov.take(draw, read) for (_, krylov), draw in zip(live, draws)]


def _is_enough(task: Task, krylov: Krylov) -> bool:
    return len(krylov) >= task.plan.span[0] and ritz(krylov).converged(task.plan.k)


def width_of(errors: Ritz, k: int) -> float:
    """The widest of the top k 95 % intervals, relative to its value, or to a thousandth of the largest value."""
    low, high = errors.interval(0.95)
    size = torch.maximum(errors.values.abs(), 1e-3 * errors.values.abs().max()).clamp(min=1e-300)
    return float(((high - low) / 2 / size)[:k].max())


def grown_data(read: int, width: float, rtol: float | None, population: int | None = None) -> int:
    """Data per direction for the next round, from the width of the intervals: between 2 and 32 times as much.

    If that is at least half of the data, use all of it: Lanczos on the full data has no noise.
    """
    if rtol is None or math.isnan(width):
        return 0
    wanted = 1.3 * (width / rtol) ** 2
    if population is not None and read < population <= 2 * max(wanted, 2.0) * read:
        return population
    return int(min(max(wanted, 2.0), 32.0) * read)


def why(width: float, rtol: float | None, everything: bool, cost: Cost, budget: int, coming: int) -> str:
    """Why the rounds stop, or "goes on"."""
    if rtol is None:
        return "one round"
    if math.isnan(width):
        return "noise unknown"
    if width <= rtol:
        return "tolerance"
    if everything:
        return "all data"
    return "budget" if (cost.data_points or cost.products) + coming > budget else "goes on"
