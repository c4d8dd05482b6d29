"""The top of the spectrum of the full-data matrix, from mini-batches, with intervals that hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from infhess._checks import count, finite_number
from infhess.curvature import BatchSource, Source, as_source
from infhess.posterior.base import normal
from infhess.spectrum.estimate import Estimate
from infhess.spectrum.krylov import Krylov
from infhess.spectrum.ritz import Ritz, ritz
from infhess.spectrum.student import probability, skewed_mean

LEAST_POINTS = 128  # a direction; with fewer the spread over chunks is too uncertain
FRESH_POINTS, FRESH_GROUPS = 256, 32


@dataclass(frozen=True)
class Along:
    """The curvature uᵀHu along given vectors, from data that had no part in choosing them."""

    values: Tensor
    std: Tensor
    products: int
    data_points: int
    _sample: Tensor = field(repr=False)
    _share: float = field(repr=False)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Intervals for uᵀHu of the full-data matrix, one a vector."""
        low, high = skewed_mean(self._sample, probability(level), self._share)
        return low.to(self.values), high.to(self.values)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the full-data matrix, descending, with error bars.

    Attributes:
        values, std, vectors: (k,), (k,) and (N, k).
        resolved: which values stand out from noise; one that does not may be made of it, and its interval reaches down.
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

    def along(self, batches: Any, *, points: int = 1024) -> Along:
        """Intervals of uᵀHu for the vectors found, from fresh data: an iterable of batches, or a source.

        The data that chose the vectors would flatter them. At least 256 points are read, in 32 groups.
        """
        source = _fresh(self._source, batches)
        vectors = list(self.vectors.mT)
        wanted = min(max(count(points, "points"), FRESH_POINTS), source.population or points)
        groups = [
            torch.stack([(u @ y).to(torch.float64) for u, y in zip(vectors, products)])
            for products in source.products_over(vectors, wanted, FRESH_GROUPS)
        ]
        x = torch.stack(groups)
        if not bool(torch.isfinite(x).all()):
            raise ValueError("a product holds NaN or infinity; is the loss finite at these parameters?")
        share = 0.0 if not source.population else min(1.0, source.data_points / source.population)
        std = x.std(0) * (max(0.0, 1 - share) / len(x)) ** 0.5
        return Along(x.mean(0).to(self.values), std.to(self.values), source.products, source.data_points, x, share)


def spectrum(
    source: Any,
    k: int = 10,
    rtol: float | None = None,
    *,
    points: int | None = None,
    directions: int | None = None,
    budget: int | None = None,
    generator: torch.Generator | None = None,
) -> Spectrum:
    """The k largest eigenvalues of the full-data matrix behind a source, with error bars.

    Args:
        source: `Hessian`, `GaussNewton`, `Products`, or a square matrix with `@`.
        k: how many.
        rtol: go on, with more data a direction, until all 95 % intervals are narrower than ± rtol of their value.
        points: fresh data points a direction, rounded up to whole batches; by default 128, and two batches.
        directions: how many; by default 2k + 6 to 4k + 16, as many as the top k values need.
        budget: the most data points (for a source without data: products) to start another round with.
        generator: for the random start.

    >>> import torch
    >>> s = spectrum(torch.diag(torch.arange(1.0, 31.0)), k=2)
    >>> s.values.round().tolist()
    [30.0, 29.0]

    """
    rounds = spectrum_rounds(source, k, rtol, points=points, directions=directions, budget=budget, generator=generator)
    return list(rounds)[-1]


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
    most = None if budget is None else count(budget, "budget")
    cost = _Cost(source)
    start = normal(source.size, like=source.like, generator=generator or torch.Generator().manual_seed(0))
    wanted, number = LEAST_POINTS if points is None else count(points, "points"), 0
    batches = 2 if points is None else 1
    least, most_directions = (2 * k + 6, 4 * k + 16) if directions is None else (count(directions, "directions"),) * 2
    while True:
        number += 1
        krylov = explore(source, k, start, (wanted, batches), least, most_directions)
        errors = ritz(krylov, source.population)
        vectors = krylov.Q[: len(krylov)].mT @ errors.weights[:, :k].to(krylov.Q)
        read, (low, high) = krylov.points[0], errors.interval(0.95)
        width = float(((high - low) / 2 / errors.values.abs().clamp(min=1e-300))[:k].max())
        grown = _grown(read or wanted, width, rtol)
        stopped = _why(width, rtol, cost, most, len(krylov) * grown, source.population, read)
        yield _spectrum(errors, vectors, k, cost, number, stopped, source)
        if stopped != "goes on":
            return
        wanted, start = grown, vectors.sum(1)


def explore(source: Source, k: int, start: Tensor, data: tuple[int, int], least: int, most: int) -> Krylov:
    """Directions until the top k Ritz values are as good as their noise allows, between `least` and `most`.

    `data` is what each is averaged over: so many points and so many batches at the least.
    """
    krylov = Krylov(start, min(max(most, k), source.size))
    while krylov.look(source, *data):
        if len(krylov) >= least and ritz(krylov, source.population).converged(k):
            break
    return krylov


class _Cost:
    """What a source has given since."""

    def __init__(self, source: Source) -> None:
        self.source, self.products_before, self.points_before = source, source.products, source.data_points

    @property
    def products(self) -> int:
        return self.source.products - self.products_before

    @property
    def data_points(self) -> int:
        return self.source.data_points - self.points_before


def _grown(read: int, width: float, rtol: float | None) -> int:
    """Data a direction for the next round: what the width asks for, between 2 and 32 times as much."""
    return 0 if rtol is None else int(min(max(1.3 * (width / rtol) ** 2, 2.0), 32.0) * read)


def _why(
    width: float, rtol: float | None, cost: _Cost, budget: int | None, coming: int, population: int | None, read: int
) -> str:
    if rtol is None:
        return "one round"
    if width <= rtol:
        return "tolerance"
    if population and read >= population:
        return "all data"
    spent = cost.data_points or cost.products
    if (budget is not None and spent + coming > budget) or not read:
        return "budget"
    return "goes on"


def _spectrum(
    errors: Ritz, vectors: Tensor, k: int, cost: _Cost, number: int, stopped: str, source: Source
) -> Spectrum:
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
    if isinstance(source, BatchSource) and isinstance(batches, Iterable):
        return source.fresh(batches)
    raise TypeError(f"along: expected fresh batches, or a source, got {type(batches).__name__}")


def largest(
    source: Any, rtol: float | None = None, *, budget: int | None = None, generator: torch.Generator | None = None
) -> Estimate:
    """The largest eigenvalue of the full-data matrix; `.upper(0.99)` is a bound that is safe for a step length.

    >>> import torch
    >>> round(largest(torch.diag(torch.arange(1.0, 9.0))).value, 3)
    8.0
    """
    found = spectrum(source, 1, rtol, budget=budget, generator=generator)
    errors = found._ritz

    def interval(level: float) -> tuple[float, float]:
        low, high = errors.interval(level)
        return float(low[0]), float(high[0])

    return Estimate(
        float(errors.values[0]), float(errors.se[0]), found.products, found.data_points,
        interval, lambda level: float(errors.upper(level)[0]),
    )  # fmt: skip
