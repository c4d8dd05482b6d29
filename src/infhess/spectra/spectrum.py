"""The top of the spectrum of the full-data matrix, from mini-batches, with intervals that hold."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from infhess._checks import count, finite_number, generator_on
from infhess._drain import drains
from infhess._precision import full_precision
from infhess._random import normal
from infhess.curvature import BatchSource, Source, as_source
from infhess.curvature.selection import Layer
from infhess.spectra.estimate import Estimate
from infhess.spectra.krylov import Krylov
from infhess.spectra.ritz import Ritz, ritz
from infhess.spectra.student import probability, skewed_mean, weighted_mean

LEAST_POINTS = 128  # a direction; with fewer the spread over chunks is too uncertain
FRESH_POINTS, FRESH_GROUPS = 256, 32
BUDGET = 2**20
UNKNOWN = (
    "nothing is known of the noise, so std and intervals are NaN: the loss is random (dropout) and all of the data is one "
    "batch that is not cut; pass several batches"
)


@dataclass(frozen=True)
class Along:
    """The curvature uᵀHu along given vectors, from data that had no part in choosing them."""

    values: Tensor
    std: Tensor
    products: int
    data_points: int
    _sample: Tensor = field(repr=False)
    _weights: Tensor = field(repr=False)
    _share: float = field(repr=False)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Intervals for uᵀHu of the full-data matrix, one a vector."""
        low, high = skewed_mean(self._sample, probability(level), self._share, self._weights)
        return low.to(self.values), high.to(self.values)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the full-data matrix, descending, with error bars.

    Attributes:
        values, std, vectors: (k,), (k,) and (N, k).
        resolved: which values stand out from noise; one that does not may be made of it, and its interval reaches down.
            Where nothing can be said of the noise (a random loss on one batch that is not cut), std and intervals are NaN.
        lowest: the smallest Ritz value and its standard error: clearly negative is negative curvature.
        products, data_points: what it cost.
        rounds, stopped: how often the data a direction was increased, and why it ended.

    """

    values: Tensor
    std: Tensor
    vectors: Tensor
    resolved: Tensor
    lowest: tuple[float, float]
    products: int
    data_points: int
    rounds: int
    stopped: str
    _ritz: Ritz = field(repr=False)
    _source: Source = field(repr=False)

    def interval(self, level: float = 0.95, *, joint: bool = False) -> tuple[Tensor, Tensor]:
        """Intervals for the eigenvalues of the full-data matrix; each covers with this probability, or all if joint."""
        level, k = probability(level), len(self.values)
        low, high = self._ritz.interval(1 - (1 - level) / k if joint else level)
        return low[:k].to(self.values), high[:k].to(self.values)

    @full_precision
    def along(self, batches: Any, *, points: int = 1024) -> Along:
        """Intervals of uᵀHu for the vectors found, from fresh data: an iterable of batches, or a source.

        The data that chose the vectors would flatter them. At least 256 points are read, in 32 groups.
        """
        source, vectors = _fresh(self._source, batches), list(self.vectors.mT)
        cost = Cost(source)
        draw = source.fresh_products(vectors, max(count(points, "points"), FRESH_POINTS), FRESH_GROUPS, forms=True)
        x = draw.products[..., 0].to(torch.float64)
        if not bool(torch.isfinite(x).all()):
            raise ValueError("a product holds NaN or infinity; is the loss finite at these parameters?")
        mean, variance = weighted_mean(x, draw.weights.to(x))
        std = (variance * draw.unread).sqrt() if draw.unread else torch.zeros_like(mean)
        if not draw.noise_is_known:
            warnings.warn(UNKNOWN, stacklevel=2)
        values = mean.to(self.values)
        return Along(values, std.to(values), cost.products, cost.data_points, x, draw.weights, 1 - draw.unread)

    def upper(self, level: float = 0.99) -> Tensor:
        """Bounds that the eigenvalues do not exceed, each with this probability."""
        return self._ritz.upper(probability(level))[: len(self.values)].to(self.values)


@full_precision
def spectrum_rounds(
    source: Any,
    k: int = 10,
    rtol: float | None = None,
    *,
    points: int | None = None,
    directions: int | None = None,
    budget: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Spectrum]:
    """`spectrum`, one round at a time; each stands alone: pooling rounds whose number depends on the data would lie."""
    source = as_source(source)
    k = count(k, "k", source.size)
    if rtol is not None:
        finite_number(rtol, "rtol", least=0.0, strict=True)
    most = BUDGET if budget is None else count(budget, "budget")
    generator_on(generator)
    start = normal(source.size, like=source.like, generator=generator or torch.Generator().manual_seed(0))
    data = (LEAST_POINTS, 2) if points is None else (count(points, "points"), 1)
    span = (2 * k + 6, 4 * k + 16) if directions is None else (count(directions, "directions"),) * 2
    if span[1] < k:
        raise ValueError(f"directions: expected at least k = {k}, got {directions}")
    return _rounds(source, k, rtol, most, data, span, start)


@full_precision
@drains(spectrum_rounds)
def spectrum(_found: Iterator[Spectrum]) -> Spectrum:
    """The last round: the k largest eigenvalues of the full-data matrix behind a source, with error bars."""
    return list(_found)[-1]


def _rounds(
    source: Source, k: int, rtol: float | None, budget: int, data: tuple[int, int], span: tuple[int, int], start: Tensor
) -> Iterator[Spectrum]:
    cost, number = Cost(source), 0
    while True:
        number += 1
        krylov = explore(source, k, start, data, *span)
        errors = ritz(krylov)
        vectors = krylov.Q[: len(krylov)].mT @ errors.weights[:, :k].to(krylov.Q)
        width = _width(errors, k)
        grown = _grown(krylov.points[0] or data[0], width, rtol)
        everything = bool((krylov.unread[: len(krylov)] == 0).all())
        if not krylov.noise_is_known:
            warnings.warn(UNKNOWN, stacklevel=2)
        stopped = _why(width, rtol, everything, cost, budget, len(krylov) * grown)
        yield assembled(errors, vectors, k, cost, number, stopped, source)
        if stopped != "goes on":
            return
        data, start = (grown, data[1]), vectors.sum(1)


def _width(errors: Ritz, k: int) -> float:
    """The widest of the top k 95 % intervals, relative to its value, or to a thousandth of the largest one."""
    low, high = errors.interval(0.95)
    size = torch.maximum(errors.values.abs(), 1e-3 * errors.values.abs().max()).clamp(min=1e-300)
    return float(((high - low) / 2 / size)[:k].max())


def explore(source: Source, k: int, start: Tensor, data: tuple[int, int], least: int, most: int) -> Krylov:
    """Directions until the top k Ritz values are as good as their noise allows, between `least` and `most`.

    `data` is what each is averaged over: so many points and so many batches at the least.
    """
    krylov = Krylov(start, min(max(most, k), source.size))
    while krylov.look(source, *data):
        if len(krylov) >= least and ritz(krylov).converged(k):
            break
    return krylov


class Cost:
    """What a source has given since."""

    def __init__(self, source: Source) -> None:
        self.source, self.products_before, self.points_before = source, source.products, source.data_points

    @property
    def products(self) -> int:
        """Products taken."""
        return self.source.products - self.products_before

    @property
    def data_points(self) -> int:
        """Data points read."""
        return self.source.data_points - self.points_before


def _grown(read: int, width: float, rtol: float | None) -> int:
    """Data a direction for the next round: what the width asks for, between 2 and 32 times as much."""
    return 0 if rtol is None or math.isnan(width) else int(min(max(1.3 * (width / rtol) ** 2, 2.0), 32.0) * read)


def _why(width: float, rtol: float | None, everything: bool, cost: Cost, budget: int, coming: int) -> str:
    if rtol is None:
        return "one round"
    if math.isnan(width):
        return "noise unknown"
    if width <= rtol:
        return "tolerance"
    if everything:
        return "all data"
    return "budget" if (cost.data_points or cost.products) + coming > budget else "goes on"


def assembled(errors: Ritz, vectors: Tensor, k: int, cost: Cost, number: int, stopped: str, source: Source) -> Spectrum:
    """A round's result."""
    like = vectors
    return Spectrum(
        values=errors.values[:k].to(like),
        std=errors.se[:k].to(like),
        vectors=vectors,
        resolved=errors.resolved[:k],
        lowest=(float(errors.values[-1]), float(errors.se[-1])),
        products=cost.products,
        data_points=cost.data_points,
        rounds=number,
        stopped=stopped,
        _ritz=errors,
        _source=source,
    )


def _fresh(source: Source, batches: Any) -> Source:
    if isinstance(batches, Source):
        return batches
    if isinstance(source, BatchSource | Layer) and isinstance(batches, Iterable):
        return source.fresh(batches)
    raise TypeError(f"along: expected fresh batches, or a source, got {type(batches).__name__}")


@full_precision
def largest(
    source: Any, rtol: float | None = None, *, budget: int | None = None, generator: torch.Generator | None = None
) -> Estimate:
    """The largest eigenvalue of the full-data matrix; `.upper(0.99)` is a bound that is safe for a step length.

    >>> import torch
    >>> round(largest(torch.diag(torch.arange(1.0, 9.0))).value, 3)
    8.0
    """
    found = spectrum(source, 1, rtol, budget=budget, generator=generator)

    def interval(level: float) -> tuple[float, float]:
        low, high = found.interval(level)
        return float(low), float(high)

    return Estimate(
        float(found.values[0]), float(found.std[0]), found.products, found.data_points,
        interval, lambda level: float(found.upper(level)[0]),
    )  # fmt: skip
