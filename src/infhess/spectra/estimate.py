"""One number with an error bar: the trace, and the largest eigenvalue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from infhess import _draw
from infhess._checks import count, generator_on
from infhess._precision import full_precision
from infhess._random import normal
from infhess.curvature import BatchSource, as_source
from infhess.spectra.student import probability, skewed_mean


@dataclass(frozen=True, repr=False)
class Estimate:
    """A value, its standard error, intervals, and what it cost. It pickles: its bounds are functions of numbers alone."""

    value: float
    std: float
    products: int
    data_points: int
    _interval: Callable[[float], tuple[float, float]]
    _upper: Callable[[float], float]

    def __repr__(self) -> str:
        cost = f"{self.products} products, {self.data_points} data points"
        return f"Estimate({self.value:.4g} ± {self.std:.2g}; {cost})"

    def _repr_html_(self) -> str:
        columns = self.as_dict()
        return _draw.table(repr(self), list(columns), [[f"{v:.4g}" for v in columns.values()]])

    def as_dict(self) -> dict[str, float]:
        """Plain numbers, with the 95 % interval."""
        low, high = self.interval(0.95)
        cost = {"products": self.products, "data_points": self.data_points}
        return {"value": self.value, "std": self.std, "low": low, "high": high, **cost}

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """An interval that covers the full-data value with this probability."""
        return self._interval(probability(level))

    def upper(self, level: float = 0.99) -> float:
        """A bound that the full-data value does not exceed with this probability."""
        return self._upper(probability(level))


def sample_estimate(x: Tensor, products: int, data_points: int) -> Estimate:
    """The mean of independent values, as an estimate."""
    std = float(x.std()) / len(x) ** 0.5
    return Estimate(
        float(x.mean()), std, products, data_points, partial(_interval_of_mean, x), partial(_upper_of_mean, x)
    )


def _interval_of_mean(x: Tensor, level: float) -> tuple[float, float]:
    low, high = skewed_mean(x[:, None], level)
    return float(low), float(high)


def _upper_of_mean(x: Tensor, level: float) -> float:
    if level == 0.5:
        return float(x.mean())
    return _interval_of_mean(x, abs(2 * level - 1))[1 if level >= 0.5 else 0]


@full_precision
def trace(source: Any, *, probes: int = 36, generator: torch.Generator | None = None) -> Estimate:
    """The trace by Hutchinson's estimate: the mean of zᵀHz over random signs z, each with a batch of its own.

    >>> import torch
    >>> estimate = trace(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
    >>> estimate.value
    6.0
    """
    source, probes = as_source(source), count(probes, "probes")
    if probes < 4:
        raise ValueError(f"probes: expected 4 or more for an error bar, got {probes}")
    products, data_points = source.products, source.data_points
    generator_on(generator)
    generator = generator or torch.Generator().manual_seed(0)
    values = []
    for _ in range(probes):
        z = normal(source.size, like=source.like, generator=generator).sign()
        values.append((z @ source.matvec(z)).to(torch.float64))
    x = torch.stack(values)
    if not bool(torch.isfinite(x).all()):
        raise ValueError("a product holds NaN or infinity; is the loss finite at these parameters?")
    read = source.data_points - data_points
    if isinstance(source, BatchSource):
        source.stream.warn_of_order(read)
    return sample_estimate(x, source.products - products, read)
