"""Parameters by name: those that match a pattern, and which entries of a flat vector belong to a layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.chunked_products import ChunkedProducts, Question
from infhess.curvature.source import Source

Ranges = list[tuple[int, int]]


def select(model: nn.Module, *patterns: str) -> dict[str, Tensor]:
    """Parameters of a model by name, in the model's order; `*` matches anything, and a module name matches all within it.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    >>> list(select(model, "*.weight")), list(select(model, "2"))
    (['0.weight', '2.weight'], ['2.weight', '2.bias'])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if not patterns or not all(isinstance(p, str) for p in patterns):
        raise TypeError('patterns: expected names such as "blocks.*.attn.*", got none, or something that is no string')
    named = dict(model.named_parameters())
    found = {p: {name for name in named if fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*")} for p in patterns}
    for pattern, names in found.items():
        if not names:
            raise ValueError(f"patterns: nothing matches {pattern!r}; {_near(pattern, named)}")
    return {name: p for name, p in named.items() if any(name in names for names in found.values())}


def _near(pattern: str, names: Iterable[str]) -> str:
    names = list(names)
    near = get_close_matches(pattern.replace("*", ""), names, 5, 0.3) or names[:5]
    return f"near it are {', '.join(near)}" if near else "the model has no parameters"


def layers_of(source: Source) -> dict[str, Ranges]:
    """The layers of a source with their ranges in flat vectors. A layer is a parameter's name without its last part."""
    names = source.flat.names if isinstance(source, BatchSource) else None
    if names is None or not isinstance(source, BatchSource):
        raise ValueError(
            'by: expected a source whose parameters have names for "layer", got one without; pass '
            "model.named_parameters(), a dict, or infhess.select(model, pattern) as params"
        )
    layers: dict[str, Ranges] = {}
    start = 0
    for name, size in zip(names, source.flat.sizes):
        layers.setdefault(name.rpartition(".")[0] or name, []).append((start, start + size))
        start += size
    return layers


def part_of_vector(v: Tensor, ranges: Ranges) -> Tensor:
    """The entries of a layer, in order."""
    return torch.cat([v[a:b] for a, b in ranges])


class Layer(Source):
    """The diagonal block of a source's matrix that belongs to one layer; its cost is counted by the source."""

    def __init__(self, whole: BatchSource, ranges: Ranges) -> None:
        self.whole, self.ranges = whole, ranges
        self.size, self.like = sum(b - a for a, b in ranges), whole.like

    @property
    def products(self) -> int:  # type: ignore[override]
        """Products computed by the source so far."""
        return self.whole.products

    @property
    def data_points(self) -> int:  # type: ignore[override]
        """Data points read by the source so far."""
        return self.whole.data_points

    def lifted(self, s: Tensor) -> Tensor:
        """A vector of the layer as one over all parameters, zero elsewhere."""
        full = torch.zeros(self.whole.size).to(self.like)
        for (a, b), part in zip(self.ranges, s.split([b - a for a, b in self.ranges])):  # type: ignore[no-untyped-call]
            full[a:b] = part
        return full

    def matvec(self, s: Tensor) -> Tensor:
        """The layer's block times s, from the next batch."""
        return part_of_vector(self.whole.matvec(self.lifted(s)), self.ranges)

    def gradient(self) -> Tensor:
        """The layer's slice of the next batch's gradient."""
        return part_of_vector(self.whole.gradient(), self.ranges)

    def fresh(self, batches: Iterable[object]) -> Layer:
        """The same block from other data."""
        return Layer(self.whole.fresh(batches), self.ranges)

    def question(self, s: Tensor, forms: bool = False) -> Question:
        """For `fresh_answers`: the block times s, or the quadratic form sᵀBs."""

        def take(y: Tensor) -> Tensor:
            part = part_of_vector(y, self.ranges)
            return (s @ part)[None] if forms else part

        return Question(lambda: self.lifted(s), take, 1 if forms else self.size)

    def fresh_products(
        self, vectors: list[Tensor], points: int, chunks: int, batches: int = 1, *, forms: bool = False
    ) -> ChunkedProducts:
        """As in `Source.fresh_products`."""
        draws = self.whole.fresh_answers([self.question(s, forms) for s in vectors], points, chunks, batches)
        return draws[0]._replace(products=torch.cat([d.products for d in draws], 1))


def products_of_layers(
    layers: Sequence[tuple[Layer, Tensor]], points: int, chunks: int, batches: int
) -> list[ChunkedProducts]:
    """The product of each layer's block with its vector, over the same fresh data: they share the graph of each batch."""
    return layers[0][0].whole.fresh_answers([layer.question(s) for layer, s in layers], points, chunks, batches)
