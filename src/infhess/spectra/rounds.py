"""Rounds of directions, each with more data than the last, until intervals are as narrow as asked for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from infhess.curvature import BatchSource, Source
from infhess.curvature.frozen import whole
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


@dataclass(frozen=True)
class Round:
    """Directions, their Ritz pairs, the top k vectors, and why the rounds stop here (or continue)."""

    krylov: Krylov
    errors: Ritz
    vectors: Tensor
    number: int
    stopped: str


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


def rounds(source: Source, plan: Plan, start: Tensor) -> Iterator[Round]:
    """Only the last round counts: pooling rounds, whose number depends on the data, would be biased."""
    cost, number, data = Cost(source), 0, plan.data
    population = source.stream.population if isinstance(source, BatchSource) else None
    while True:
        number += 1
        exact = population is not None and data[0] >= population and plan.span[0] < plan.span[1]
        # Without noise only more directions improve values, so more are allowed.
        span = plan.span[0], (2 if exact else 1) * plan.span[1]
        krylov = explore(source, plan.k, start, data, *span, plan.memory)
        errors = ritz(krylov)
        vectors = krylov.Q[: len(krylov)].mT @ errors.weights[:, : plan.k].to(krylov.Q)
        width = width_of(errors, plan.k)
        grown = grown_data(krylov.points[0] or data[0], width, plan.rtol, population)
        everything = bool((krylov.population_factor[: len(krylov)] == 0).all())
        if not krylov.noise_is_known:
            warnings.warn(UNKNOWN, stacklevel=2)
        stopped = why(width, plan.rtol, everything, cost, plan.budget, len(krylov) * grown)
        yield Round(krylov, errors, vectors, number, stopped)
        if stopped != "goes on":
            return
        data, start = (grown, data[1]), vectors.sum(1)


def explore(
    source: Source, k: int, start: Tensor, data: tuple[int, int], least: int, most: int, memory: int | None = None
) -> Krylov:
    """Add directions until the top k Ritz values are as good as their noise allows, between `least` and `most`.

    `data` is what each is averaged over: at least that many points and batches. If that is all of the data, it is kept, and
    this is Lanczos on the full data.
    """
    held = whole(source, data[0], *(() if memory is None else (memory,)))
    krylov = Krylov(start, min(max(most, k), source.size), max(k, 1), memory, exact=held is not None)
    try:
        while krylov.multiply(source, *data, held):
            if len(krylov) >= least and ritz(krylov).converged(k):
                break
        krylov.fill()
    finally:
        krylov.close()
    return krylov


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
