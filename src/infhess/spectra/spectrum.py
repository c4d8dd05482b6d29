"""Eigenvalues with their intervals, and the curvature along their vectors on fresh data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infhess._checks import count
from infhess._precision import full_precision
from infhess.curvature import BatchSource, Source
from infhess.curvature.selection import Layer
from infhess.spectra.faces import ValuesFace
from infhess.spectra.ritz import Ritz
from infhess.spectra.rounds import NOT_FINITE, UNKNOWN, Cost
from infhess.spectra.student import probability, skewed_mean, weighted_mean

FRESH_POINTS, FRESH_GROUPS = 256, 32


@dataclass(frozen=True, repr=False)
class Along(ValuesFace):
    """The curvature uᵀHu along given vectors, from data that was not used to choose them.

    >>> import torch, infhess
    >>> x = torch.randn(1024, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 1.0, 0.1])
    >>> w = torch.zeros(3, requires_grad=True)
    >>> source = infhess.Hessian(lambda x: (x @ w).square().mean() / 2, [w], x[:512].split(32))
    >>> along = infhess.spectrum(source, k=1, points=64).along(x[512:].split(32), points=256)
    >>> low, high = along.interval(0.95)
    >>> bool(low < along.values), bool(along.values < high), along.data_points
    (True, True, 256)
    """

    what = "curvature along the vector"

    values: Tensor
    std: Tensor
    products: int
    data_points: int
    _sample: Tensor
    _weights: Tensor
    _share: float

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Intervals for uᵀHu of the full-data matrix, one per vector."""
        low, high = skewed_mean(self._sample, probability(level), self._share, self._weights)
        return low.to(self.values), high.to(self.values)


@dataclass(frozen=True, repr=False)
class Spectrum(ValuesFace):
    """Eigenvalues of the full-data matrix, descending, with error bars.

    Attributes:
        values, std, vectors: (k,), (k,) and (N, k).
        resolved: which values stand out from noise; others may be noise only, and their intervals reach down. If nothing is
            known about the noise (a random loss on one batch that is not split), std and intervals are NaN.
        lowest: the smallest Ritz value and its standard error; if clearly below zero, there is negative curvature.
        products, data_points: the cost.
        rounds, stopped: how often the data per direction was increased, and why it stopped.
        memory: bytes of the directions and of what is kept of their products.

    >>> import torch, infhess
    >>> found = infhess.spectrum(torch.diag(torch.arange(1.0, 9.0)), k=2)
    >>> [round(v, 3) for v in found.values.tolist()], found.resolved.tolist(), found.vectors.shape
    ([8.0, 7.0], [True, True], torch.Size([8, 2]))
    >>> low, high = found.interval(0.95)
    >>> bool((low <= found.values).all() and (found.values <= high).all())
    True

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
    memory: int
    _ritz: Ritz
    _source: Source | None

    def interval(self, level: float = 0.95, *, joint: bool = False) -> tuple[Tensor, Tensor]:
        """Intervals for the eigenvalues of the full-data matrix, with this coverage for each, or for all if `joint`."""
        level, k = probability(level), len(self.values)
        low, high = self._ritz.interval(1 - (1 - level) / k if joint else level)
        return low[:k].to(self.values), high[:k].to(self.values)

    @full_precision
    def along(self, batches: Any, *, points: int = 1024) -> Along:
        """Intervals of uᵀHu for the vectors found, from fresh data: an iterable of batches, or a source.

        The data that chose the vectors would be biased towards them. At least 256 points are read, in 32 groups.
        """
        source, vectors = _fresh(self._source, batches), list(self.vectors.mT)
        cost = Cost(source)
        draw = source.fresh_products(vectors, max(count(points, "points"), FRESH_POINTS), FRESH_GROUPS, forms=True)
        x = draw.products[..., 0].to(torch.float64)
        if not bool(torch.isfinite(x).all()):
            raise ValueError(NOT_FINITE)
        mean, variance = weighted_mean(x, draw.weights.to(x))
        std = (variance * draw.population_factor).sqrt() if draw.population_factor else torch.zeros_like(mean)
        if not draw.noise_is_known:
            warnings.warn(UNKNOWN, stacklevel=2)
        values = mean.to(self.values)
        return Along(
            values, std.to(values), cost.products, cost.data_points, x, draw.weights, 1 - draw.population_factor
        )

    def upper(self, level: float = 0.99) -> Tensor:
        """Upper bounds on the eigenvalues, each of which holds with this probability."""
        return self._ritz.upper(probability(level))[: len(self.values)].to(self.values)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, with 95 % intervals, e.g. for JSON."""
        more = {"resolved": self.resolved.tolist(), "lowest": list(self.lowest), "parameters": len(self.vectors)}
        how = {"rounds": self.rounds, "stopped": self.stopped, "memory": self.memory}
        return {**super().as_dict(), **more, **how}

    def __getstate__(self) -> dict[str, Any]:
        """Pickles without the source: a loss is often a lambda, and its data large. `along` then needs a source."""
        return {**self.__dict__, "_source": None}


def as_spectrum(
    errors: Ritz, vectors: Tensor, cost: Cost, number: int, stopped: str, source: Source, memory: int
) -> Spectrum:
    """The top pairs, one per vector, as a result."""
    k = vectors.shape[1]
    return Spectrum(
        values=errors.values[:k].to(vectors),
        std=errors.se[:k].to(vectors),
        vectors=vectors,
        resolved=errors.resolved[:k],
        lowest=(float(errors.values[-1]), float(errors.se[-1])),
        products=cost.products,
        data_points=cost.data_points,
        rounds=number,
        stopped=stopped,
        memory=memory,
        _ritz=errors,
        _source=source,
    )


def _fresh(source: Source | None, batches: Any) -> Source:
    if isinstance(batches, Source):
        return batches
    if isinstance(source, BatchSource | Layer) and isinstance(batches, Iterable):
        return source.fresh(batches)
    wanted = "a source (pickling has left the loss behind)" if source is None else "fresh batches, or a source"
    raise TypeError(f"along: expected {wanted}, got {type(batches).__name__}")
