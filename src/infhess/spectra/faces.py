"""How results are displayed: a line, a table, a plot, plain numbers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeVar

from torch import Tensor

from infhess import _draw

LEVEL = 0.95
SHOWN = 3  # values or layers shown in a line


class ValuesFace(_draw.Rows):
    """Displays values with standard errors and intervals, numbered in order."""

    what = "eigenvalue"  # what the numbers count
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
        """Plain numbers and lists, with 95 % intervals, e.g. for JSON."""
        low, high = self.interval(LEVEL)
        bounds = {"low": low.tolist(), "high": high.tolist(), "level": LEVEL}
        cost = {"products": self.products, "data_points": self.data_points}
        return {"values": self.values.tolist(), "std": self.std.tolist(), **bounds, **cost}

    def __repr__(self) -> str:
        shown = [f"{v:.4g} ± {s:.2g}" for v, s in zip(self.values.tolist()[:SHOWN], self.std.tolist())]
        cost = f"{self.products} products, {self.data_points} data points"
        return f"{type(self).__name__}({_and_more(shown, len(self.values))}; {cost})"


Part = TypeVar("Part", bound=_draw.Rows)


class Layers(dict[str, Part], _draw.Rows):
    """Results by layer name: a dict, with a table and a plot of all layers.

    >>> import torch, infhess
    >>> w = {"a.weight": torch.zeros(1, requires_grad=True), "b.weight": torch.zeros(1, requires_grad=True)}
    >>> source = infhess.Hessian(lambda x: ((2 * w["a.weight"] + w["b.weight"]) * x).square().mean(), w, [torch.ones(4)])
    >>> found = infhess.spectrum(source, 1, by="layer")  # `found.plot()` shows both
    >>> {name: round(part["values"][0], 3) for name, part in found.as_dict().items()}
    {'a': 8.0, 'b': 2.0}
    """

    def _columns(self) -> dict[str, list[Any]]:
        parts = {name: part._columns() for name, part in self.items()}
        columns = list(dict.fromkeys(column for part in parts.values() for column in part))
        names = [name for name, part in parts.items() for _ in part["value"]]
        return {"layer": names} | {c: [v for part in parts.values() for v in part[c]] for c in columns}

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists for each layer, with 95 % intervals, e.g. for JSON."""
        return {name: part.as_dict() for name, part in self.items()}  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        shown = [f"{name}: {part!r}" for name, part in list(self.items())[:SHOWN]]
        return f"Layers({_and_more(shown, len(self))})"


def _and_more(shown: list[str], of: int) -> str:
    return ", ".join(shown) + (f", and {of - len(shown)} more" if of > len(shown) else "")
