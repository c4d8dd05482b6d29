"""The result of `density`: a distribution of eigenvalues with bounds, and its displays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infhess import _draw
from infhess._checks import as_real
from infhess.spectra.density_figure import draw_density, draw_distribution
from infhess.spectra.law import Bracket, Law
from infhess.spectra.student import probability

PLOTTED = 160  # points of a plotted distribution function


@dataclass(frozen=True, repr=False)
class Share:
    """A share of the eigenvalues, with intervals.

    >>> import torch, infhess
    >>> infhess.density(torch.diag(torch.tensor([-1.0, 0.0, 0.0, 3.0]))).negative
    Share(0.25, 95 % interval 0.25 … 0.25)
    """

    value: float
    _bracket: Bracket  # bounds, with one number each
    _law: Law

    def __repr__(self) -> str:
        low, high = self.interval(0.95)
        return f"Share({self.value:.4g}, 95 % interval {low:.4g} … {high:.4g})"

    def as_dict(self) -> dict[str, float]:
        """Plain numbers, with the 95 % interval."""
        low, high = self.interval(0.95)
        return {"value": self.value, "low": low, "high": high}

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Bounds that hold with this probability."""
        level = probability(level)
        if math.isnan(float(self._bracket.low)):
            return math.nan, math.nan
        low, high = self._law.interval(*self._bracket, level)
        return float(low), float(high)


@dataclass(frozen=True, repr=False)
class Density:
    """The spectral density of the full-data matrix.

    Attributes:
        grid, values: points, and the density there; each Gauss node is smoothed by its uncertainty, the smaller of its residual
            and the distance to its neighbours.
        negative: the share of eigenvalues below −zero.
        near_zero: the share of eigenvalues within ± zero.
        zero: by default a thousandth of the largest magnitude.
        data_error: the most that unread data adds to the intervals; 0 if all data was read, and NaN if nothing is known about
            it.
        points: the data points in each product.
        products, data_points: the cost.
        stopped: why no more data was read.

    >>> import torch, infhess
    >>> found = infhess.density(torch.diag(torch.tensor([-1.0, 0.0, 0.0, 3.0])))
    >>> round(float(found.cdf(torch.tensor([1.0]))), 3)  # the share of eigenvalues at or below 1
    0.75
    >>> found.grid.shape == found.values.shape, found.data_error
    (True, 0.0)

    """

    grid: Tensor
    values: Tensor
    negative: Share
    near_zero: Share
    zero: float
    data_error: float
    points: int
    products: int
    data_points: int
    stopped: str
    _law: Law

    def cdf(self, x: Any) -> Tensor:
        """The share of eigenvalues at or below x, a number or a tensor: the midpoint of the bounds from quadrature."""
        x, shape = self._points(x)
        low, high = self._law.seen.bounds(x)
        return ((low + high) / 2).reshape(shape)

    def interval(self, x: Any, level: float = 0.95, *, joint: bool = False) -> tuple[Tensor, Tensor]:
        """Bounds on the share of eigenvalues of the full-data matrix at or below x.

        They hold for the step function itself: at each x with this probability, or at all x at once if `joint`.
        """
        x, shape = self._points(x)
        law = self._law.band if joint else self._law.interval
        low, high = law(*self._law.bounds(x), probability(level))
        if math.isnan(self.data_error):
            low, high = low * math.nan, high * math.nan
        return low.reshape(shape), high.reshape(shape)

    def _points(self, x: Any) -> tuple[Tensor, torch.Size]:
        x = as_real(float(x) if isinstance(x, int | float) else x, "x").to(self._law.seen.T)
        if bool(x.isnan().any()):
            raise ValueError("x: expected numbers, got NaN")
        return x.reshape(-1), x.shape

    @property
    def _some(self) -> Tensor:
        """Points of the grid, as many as a plot or a table needs."""
        some: Tensor = torch.unique(self.grid[torch.linspace(0, len(self.grid) - 1, PLOTTED).long()])
        return some

    def _columns(self) -> dict[str, list[float]]:
        x = self._some
        low, high = self.interval(x)
        columns = {"x": x, "density": self.values[torch.searchsorted(self.grid, x)], "share": self.cdf(x)}
        return {name: c.tolist() for name, c in {**columns, "low": low, "high": high}.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, e.g. for JSON: the density, and the distribution function with 95 % intervals."""
        shares = {"negative": self.negative.as_dict(), "near_zero": self.near_zero.as_dict(), "zero": self.zero}
        cost = {"products": self.products, "data_points": self.data_points}
        how = {"data_error": self.data_error, "points": self.points, "stopped": self.stopped}
        return {**self._columns(), **shares, **how, **cost}

    def to_pandas(self) -> Any:
        """A DataFrame with one row per point x, for some points; needs pandas."""
        return _draw.frame(self._columns())

    def __repr__(self) -> str:
        cost = f"{self.products} products, {self.data_points} data points"
        ends = f"from {float(self.grid[0]):.3g} to {float(self.grid[-1]):.3g}"
        shares = f"{self.negative.value:.1%} negative, {self.near_zero.value:.1%} within ± {self.zero:.2g}"
        return f"Density({ends}, {shares}; {cost})"

    def _repr_html_(self) -> str:
        shares = {f"below −{self.zero:.2g}": self.negative, f"within ± {self.zero:.2g}": self.near_zero}
        rows = [[name, *(f"{v:.4g}" for v in share.as_dict().values())] for name, share in shares.items()]
        return _draw.table(repr(self), ["eigenvalues", "share", "low", "high"], rows)

    def plot(self, ax: Any = None, *, cdf: bool = False) -> Any:
        """Plot the density, or its distribution function with pointwise and joint 95 % bounds; returns the axes."""
        ax = _draw.axes(ax)
        if not cdf:
            draw_density(ax, self.grid, self.values)
            return ax
        x = self._some
        bands = {
            f"95 %, at {'all points' if joint else 'each point'}": self.interval(x, joint=joint)
            for joint in (True, False)
        }
        draw_distribution(ax, x, self.cdf(x), bands, self.zero)
        return ax
