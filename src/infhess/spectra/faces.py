"""How results show themselves: a line, a table, a picture, plain numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import islice
from typing import Any

from torch import Tensor

from infhess import _draw

LEVEL = 0.95
ROWS = 100  # of a table in a notebook


class ValuesFace(ABC):
    """For values with standard errors and intervals, numbered in their order."""

    what = "eigenvalue"  # what is numbered
    values: Tensor
    std: Tensor
    products: int
    data_points: int

    @abstractmethod
    def interval(self, level: float = LEVEL) -> tuple[Tensor, Tensor]:
        """Bounds for each value."""

    def _columns(self) -> dict[str, list[Any]]:
        low, high = self.interval(LEVEL)
        number = list(range(1, len(self.values) + 1))
        columns = {"value": self.values, "std": self.std, "low": low, "high": high}
        return {self.what: number} | {name: column.tolist() for name, column in columns.items()}

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, with 95 % intervals: for a script, for JSON."""
        low, high = self.interval(LEVEL)
        bounds = {"low": low.tolist(), "high": high.tolist(), "level": LEVEL}
        cost = {"products": self.products, "data_points": self.data_points}
        return {"values": self.values.tolist(), "std": self.std.tolist(), **bounds, **cost}

    def to_pandas(self) -> Any:
        """A DataFrame with one row a value, and its 95 % interval; needs pandas."""
        return _draw.frame(self._columns())

    def plot(self, ax: Any = None) -> Any:
        """The values with their 95 % intervals; needs matplotlib. Returns the axes."""
        ax, columns = _draw.axes(ax), self._columns()
        _draw.bars(ax, columns["value"], columns["low"], columns["high"], "95 % interval")
        ax.set(xlabel=f"{self.what} number", ylabel="curvature")
        return ax

    def _repr_html_(self) -> str:
        columns = self._columns()
        rows = [[_cell(v) for v in row] for row in islice(zip(*columns.values()), ROWS)]
        return _draw.table(self._summary(), list(columns), rows)

    def __repr__(self) -> str:
        return self._summary()

    def _summary(self) -> str:
        shown = [f"{v:.4g} ± {s:.2g}" for v, s in zip(self.values.tolist()[:3], self.std.tolist())]
        more = len(self.values) - len(shown)
        line = ", ".join(shown) + (f", and {more} more" if more else "")
        return f"{type(self).__name__}({line}; {self.products} products, {self.data_points} data points)"


def _cell(v: Any) -> str:
    return f"{v:.4g}" if isinstance(v, float) else "yes" if v is True else "no" if v is False else str(v)
