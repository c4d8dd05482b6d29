"""A curvature probe: how far the loss can be followed along a direction, by one Hessian-vector product."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess._distributed import any_process, mean_over_processes, world_size
from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.flat import dense, real, shaped
from infhess.curvature.local import Local
from infhess.curvature.pooled import failed_somewhere
from infhess.curvature.training_pass import TrainedHessian

# Numbers of a dot product that are converted to double precision at a time: no copy of a large tensor is made.
PIECE = 2**14
Scaled = Callable[[int, Tensor], Tensor]  # D x of parameter i
Form = Callable[[int, Tensor, Tensor], float]  # xᵀDy of parameter i


class Reading(NamedTuple):
    """|g|, |Dg| and ½ log(gᵀDg/hᵀDh), NaN where there is no gradient or no curvature along it."""

    gradient: float
    direction: float
    log_ratio: float

    @classmethod
    def of(cls, gradient: float, direction: float, along: float, across: float = math.nan) -> Reading:
        """From gᵀDg and hᵀDh."""
        known = 0 < along < math.inf and 0 < across < math.inf
        return cls(gradient, direction, 0.5 * (math.log(along) - math.log(across)) if known else math.nan)


class MicroBatch:
    """A micro-batch of the coming step: its curvature, recomputed for each use or kept with its graph."""

    def __init__(self, source: BatchSource, batch: Batch, *, keep: bool = True) -> None:
        self.source, self.batch, self.keep, self.seed = source, batch, keep, source.seed()
        self._local: Local | None = None

    def local(self) -> Local:
        """With the same dropout mask each time."""
        local = self._local or self.source.local(self.batch, self.seed)
        self._local = local if self.keep else None
        return local


class Probe:
    """Curvature along a direction, of the micro-batches of a step that are at hand.

    With several processes each has its own, and all read the mean over them.
    """

    def __init__(
        self,
        pieces: Sequence[MicroBatch],
        micro_batches: int = 1,
        *,
        params: Sequence[Tensor] | None = None,
        failure: Exception | None = None,
    ) -> None:
        self.pieces, self.failure = pieces, failure  # of this process, before there was anything to probe
        self.params = pieces[0].source.flat.live if params is None else list(params)
        self.micro_batches = max(micro_batches, len(pieces))
        self.norms: list[Any] | None = None  # BatchNorm layers that ran, where modules were seen

    @property
    def cost(self) -> tuple[int, int]:
        """Hessian-vector products, and data points that they were taken with."""
        sources = [piece.source for piece in self.pieces]
        return sum(source.products for source in sources), sum(source.product_points for source in sources)

    @property
    def whole(self) -> bool:
        """Whether all micro-batches of the step are at hand."""
        return len(self.pieces) == self.micro_batches

    def own(self) -> list[Tensor]:
        """The gradient of these micro-batches, real, in at least single precision."""
        gradients = ([_plain(x) for x in piece.local().gradients] for piece in self.pieces)
        none: list[Tensor] = []
        return self._mean(self._agreed(lambda: reduce(_sum, gradients, none)), len(self.pieces))

    def read(self, g: Sequence[Tensor], scaled: Scaled, form: Form | None = None) -> Reading:
        """Along Dg, with g the gradient of the coming step and D its scaling; h = HDg is scaled as g is.

        √(gᵀDg/hᵀDh) needs no sign of gᵀDHDg, which changes often early on. Scaling the loss does not change it, and it scales
        as w does. Lists of tensors throughout: the peak is three copies of the parameters.
        """
        p = [scaled(i, x) for i, x in enumerate(g)]
        squares, along, scaled_squares = inner_products(g, p)
        gradient, direction = math.sqrt(squares), math.sqrt(scaled_squares)
        if not 0 < along < math.inf:
            return Reading.of(gradient, direction, along)
        vectors = [shaped(x, w) for x, w in zip(p, self.params)]
        del p
        products, own = self.measure(vectors)
        del vectors
        inner = form or (lambda i, x, y: dot(x, scaled(i, y)))
        across = self.across(products, lambda x, y: sum(inner(i, a, b) for i, (a, b) in enumerate(zip(x, y))))
        return Reading.of(gradient, direction, along, across * self.factor(g, own) ** 2)

    def measure(self, vectors: Sequence[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Products, one for all pieces where they are the whole step and else one for each; and the pieces' gradient."""
        found, own = self._agreed(lambda: self._measured(vectors))
        number, alone = max(len(self.pieces), 1), self._in_any(len(found) == 1)
        if not self.pieces:
            own = [torch.zeros_like(_plain(p)) for p in self.params]
            found = [own, own]
        if alone:
            found = [reduce(_sum, found)]
        return [self._mean(h, number if alone else 1) for h in found], self._mean(own, number)

    def _measured(self, vectors: Sequence[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Sums of this process."""
        found: list[list[Tensor]] = []
        own: list[Tensor] = []
        for piece in self.pieces:
            local = piece.local()
            h = [_plain(x) for x in piece.source.products_of(local, vectors)]
            found = [_sum(found[0], h)] if found and self.whole else [*found, h]
            own = _sum(own, [_plain(x) for x in local.gradients])
            if local.watch.modules:
                self.norms = local.watch.norms
        return found, own

    @property
    def trained(self) -> bool:
        """Whether these are training passes, whose gradients add up in `.grad` as they are; else losses of their own."""
        return bool(self.pieces) and isinstance(self.pieces[0].source, TrainedHessian)

    def take_part(self) -> None:
        """What a process without data adds to what the others read: nothing."""
        self.measure(())
        self._in_any(False)

    def _mean(self, sums: list[Tensor], number: int) -> list[Tensor]:
        """Over this many pieces and over processes; of training passes, what all of the step add up to."""
        divisor = number / self.micro_batches if self.trained else float(number)
        if divisor != 1:
            sums = list(torch._foreach_div(sums, divisor))
        return [mean_over_processes(x.clone()) for x in sums] if world_size() > 1 else sums

    def across(self, products: list[list[Tensor]], form: Callable[[list[Tensor], list[Tensor]], float]) -> float:
        """hᵀDh of the whole step. From some of its micro-batches: what two of them share, and the noise of all.

        E h₁ᵀDh₂ is free of noise, and the mean of k has 1/k of the noise that E hᵢᵀDhᵢ adds to it.
        """
        square = sum(form(h, h) for h in products) / len(products)
        if len(products) == 1:
            return square
        shared = form(products[0], products[1])
        return max(shared + (square - shared) / self.micro_batches, square / self.micro_batches)

    def factor(self, g: Sequence[Tensor], own: Sequence[Tensor]) -> float:
        """What g was multiplied by on its way from the loss: clipping, a scaled loss, a sum over micro-batches.

        |g|/|own| where both are of the same batches, also if dropout drew another mask. Where g is of more batches,
        |g|²/⟨g, own⟩: noise that has averaged out in g then does not count as a factor.
        """
        size, shared, squares = inner_products(g, own)
        of_more = not (self.whole and all(piece.source.split for piece in self.pieces))
        if self._in_any(of_more) and shared > 0:
            return size / shared
        return math.sqrt(size / squares) if squares > 0 else 1.0

    def _agreed(self, compute: Callable[[], Any]) -> Any:
        """What each process computes alone; where it fails in one of them, it fails in all."""
        failure, found = self.failure, None
        try:
            found = compute() if failure is None else None
        except Exception as error:
            failure = error
        if failure := failed_somewhere(failure, self.params[0].device):
            raise failure
        return found

    def _in_any(self, condition: bool) -> bool:
        """Whether it holds in some process: numbers of micro-batches may differ between them."""
        return any_process(condition, self.params[0].device)


def _sum(before: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    """Tensor by tensor; what is first is not copied, and never written to: it may be part of a graph."""
    return list(torch._foreach_add(before, more)) if before else more


def dot(a: Tensor, b: Tensor) -> float:
    """In double precision: squares of single precision overflow where the numbers themselves do not."""
    small = small_dtype(a.device)
    return sum(float(torch.dot(x.to(small), y.to(small))) for x, y in _pieces(a, b))


def inner_products(a: Sequence[Tensor], b: Sequence[Tensor]) -> tuple[float, float, float]:
    """aᵀa, aᵀb and bᵀb of two lists of tensors, each as one vector; each number is converted once."""
    found = [_three(*pair) for x, y in zip(a, b) for pair in _pieces(x, y)]
    aa, ab, bb = (sum(values) for values in zip(*found)) if found else (0.0, 0.0, 0.0)
    return aa, ab, bb


def _three(x: Tensor, y: Tensor) -> tuple[float, float, float]:
    x, y = x.to(small_dtype(x.device)), y.to(small_dtype(y.device))
    return float(torch.dot(x, x)), float(torch.dot(x, y)), float(torch.dot(y, y))


def _pieces(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(a.reshape(-1), PIECE), torch.split(b.reshape(-1), PIECE))


def _plain(x: Tensor) -> Tensor:
    """Dense, real, in at least single precision."""
    return wide(real(dense(x.detach())))


def wide(x: Tensor) -> Tensor:
    """In at least single precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
