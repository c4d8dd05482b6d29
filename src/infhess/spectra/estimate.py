"""A single number with an error bar: the trace, or the largest eigenvalue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor

from infhess import _draw
from infhess._checks import count, generator_on
from infhess._precision import full_precision
from infhess._random import signs
from infhess.curvature import BatchSource, Source, as_source
from infhess.curvature.selection import Ranges, layers_of
from infhess.spectra.deflated import deflated_products, fits
from infhess.spectra.faces import Layers
from infhess.spectra.rounds import NOT_FINITE
from infhess.spectra.student import probability, skewed_mean


@dataclass(frozen=True, repr=False)
class Estimate(_draw.Rows):
    """A value, its standard error, intervals, and the cost. It can be pickled: its bounds depend on numbers only.

    If few points carry most of the curvature, as in a net that fits its data, the standard error is too small. Intervals
    account for this: they are wider on the side to which rare points would move the value.

    >>> import torch, infhess
    >>> found = infhess.trace(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
    >>> round(found.value, 3), [round(v, 3) for v in found.interval(0.95)], round(found.upper(0.99), 3)
    (6.0, [6.0, 6.0], 6.0)
    """

    value: float
    std: float
    products: int
    data_points: int
    _interval: Callable[[float], tuple[float, float]]
    _upper: Callable[[float], float]

    def __repr__(self) -> str:
        cost = f"{self.products} products, {self.data_points} data points"
        low, high = self.interval(0.95)
        return f"Estimate({self.value:.4g}, 95 % {low:.3g} to {high:.3g}; {cost})"

    def _columns(self) -> dict[str, list[Any]]:
        numbers = self.as_dict()
        return {name: [numbers[name]] for name in ("value", "std", "low", "high")}

    def as_dict(self) -> dict[str, float]:
        """Plain numbers, with the 95 % interval."""
        low, high = self.interval(0.95)
        cost = {"products": self.products, "data_points": self.data_points}
        return {"value": self.value, "std": self.std, "low": low, "high": high, **cost}

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """An interval that covers the full-data value with this probability."""
        return self._interval(probability(level))

    def upper(self, level: float = 0.99) -> float:
        """An upper bound on the full-data value that holds with this probability."""
        return self._upper(probability(level))


def sample_estimate(x: Tensor, products: int, data_points: int) -> Estimate:
    """The mean of independent values, as an `Estimate`."""
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


@overload
def trace(
    source: Any, *, by: None = None, probes: int = 36, sketch: int = 10, generator: torch.Generator | None = None
) -> Estimate: ...
@overload
def trace(
    source: Any, *, by: str, probes: int = 36, sketch: int = 10, generator: torch.Generator | None = None
) -> Layers[Estimate]: ...


@full_precision
def trace(
    source: Any, *, by: str | None = None, probes: int = 36, sketch: int = 10, generator: torch.Generator | None = None
) -> Estimate | Layers[Estimate]:
    """The trace, from products with random signs z, and a sketch of the top of the spectrum if the source has batches.

    Args:
        source: `Hessian`, `GaussNewton`, `Fisher`, `Products`, or a square matrix with `@`.
        by: "layer" for a dict of the traces of the layers' blocks, by name, from the same products.
        probes: number of random vectors. With a sketch six of them share a batch, and there are at least eight batches.
        sketch: columns of the sketch. 0 for Hutchinson's estimator, the mean of zᵀHz with a batch for each z; this is also used
            without batches, for too few parameters for a sketch, and for more than four million.
        generator: random numbers for these vectors.

    Hutch++ and XTrace as published take all products on one sample of data, and its noise remains. With a fresh batch for
    every six probes, each with the sum over the sketch, the error was about that of Hutchinson's estimator, or smaller, in
    half the time in most cells: `infhess bench curvature --trace` measures it.

    >>> import torch
    >>> estimate = trace(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
    >>> estimate.value
    6.0

    """
    source, probes = as_source(source), at_least_four(probes)
    layers = None if by_layer(by) is None else layers_of(source)
    columns = 0 if sketch == 0 else count(sketch, "sketch")
    products, data_points = source.products, source.data_points
    forms = list(diagonal_forms(source, probes, columns, generator))
    cost = source.products - products, source.data_points - data_points
    if layers is None:
        return sample_estimate(torch.stack([form.sum() for form in forms]), *cost)
    parts = {name: torch.stack([_over(form, ranges) for form in forms]) for name, ranges in layers.items()}
    return Layers({name: sample_estimate(x, *cost) for name, x in parts.items()})


def _over(form: Tensor, ranges: Ranges) -> Tensor:
    return torch.stack([form[a:b].sum() for a, b in ranges]).sum()


def at_least_four(probes: Any) -> int:
    """Check the number of probes: with fewer than four there is no error bar."""
    number = count(probes, "probes")
    if number < 4:
        raise ValueError(f"probes: expected 4 or more for an error bar, got {number}")
    return number


def by_layer(by: Any) -> str | None:
    """Check that `by` is None or "layer"."""
    if by not in (None, "layer"):
        raise ValueError(f'by: expected None or "layer", got {by!r}')
    return "layer" if by else None


def diagonal_forms(source: Source, probes: int, sketch: int, generator: torch.Generator | None) -> Iterator[Tensor]:
    """Vectors whose expectation is the diagonal of H, each from its own data, in double precision."""
    generator_on(generator)
    generator, before = generator or torch.Generator().manual_seed(0), source.data_points
    if isinstance(source, BatchSource) and fits(source, sketch):
        found = deflated_products(source, probes, sketch, generator)
    else:
        found = _signed_products(source, probes, generator)
    for form in found:
        if not bool(torch.isfinite(form.sum())):
            raise ValueError(NOT_FINITE)
        yield form
    if isinstance(source, BatchSource):
        source.stream.warn_of_order(source.data_points - before)


def _signed_products(source: Source, probes: int, generator: torch.Generator) -> Iterator[Tensor]:
    """z ⊙ Hz for random signs z, each with its own batch."""
    for _ in range(probes):
        z = signs(source.size, like=source.like, generator=generator)
        yield (z * source.matvec(z)).to(torch.float64)
