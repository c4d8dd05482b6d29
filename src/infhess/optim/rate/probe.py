"""A curvature probe: how long a step along a direction can be, from one Hessian-vector product."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess._distributed import any_process, mean_over_processes, world_size
from infhess.curvature.batch_curvature import BatchCurvature
from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.flat import dense, real, shaped, widened
from infhess.curvature.in_range import InRange
from infhess.curvature.pooled import failed_somewhere
from infhess.curvature.training_pass import TrainedHessian

# Dot products convert this many numbers to double precision at a time, so that no large tensor is copied.
PIECE = 2**14
Scaled = Callable[[int, Tensor], Tensor]  # D x for parameter i
Form = Callable[[int, Tensor, Tensor], float]  # xᵀDy for parameter i


class Reading(NamedTuple):
    """|g|, |Dg| and ½ log(gᵀDg/hᵀDh), which is NaN without a gradient or without curvature along it."""

    gradient: float
    direction: float
    log_ratio: float
    overflow: bool = False  # whether the gradient is finite, and the product is not

    @classmethod
    def of(cls, gradient: float, direction: float, along: float, across: float = math.nan) -> Reading:
        """A reading from gᵀDg (`along`) and hᵀDh (`across`)."""
        known = 0 < along < math.inf and 0 < across < math.inf
        log_ratio = 0.5 * (math.log(along) - math.log(across)) if known else math.nan
        return cls(gradient, direction, log_ratio, 0 < along < math.inf and not math.isfinite(across))


class MicroBatch:
    """A micro-batch of the coming step, with its curvature recomputed for each use, or kept as a graph."""

    def __init__(self, source: BatchSource, batch: Batch, *, keep: bool = True) -> None:
        source.pooled = False  # the probe averages over processes itself
        self.source, self.batch, self.keep, self.seed = source, batch, keep, source.seed()
        self._local: BatchCurvature | None = None

    def local(self) -> BatchCurvature:
        """The curvature of this micro-batch, with the same dropout mask each time."""
        local = self._local or self.source.local(self.batch, self.seed)
        self._local = local if self.keep else None
        return local


class Probe:
    """Curvature along a direction, on those micro-batches of a step that are available.

    With several processes each has its own probe, and all read the mean over processes.
    """

    def __init__(
        self,
        pieces: Sequence[MicroBatch],
        micro_batches: int = 1,
        *,
        params: Sequence[Tensor] | None = None,
        failure: Exception | None = None,
    ) -> None:
        self.pieces, self.failure = pieces, failure  # an error of this process before the probe
        self.params = pieces[0].source.flat.live if params is None else list(params)
        self.micro_batches = max(micro_batches, len(pieces))
        self.norms: list[Any] | None = None  # BatchNorm layers that ran, if modules were seen

    @property
    def cost(self) -> tuple[int, int]:
        """Hessian-vector products, and the data points that they were computed on."""
        sources = [piece.source for piece in self.pieces]
        return sum(source.products for source in sources), sum(source.product_points for source in sources)

    @property
    def whole(self) -> bool:
        """Whether all micro-batches of the step are available."""
        return len(self.pieces) == self.micro_batches

    def own(self) -> list[Tensor]:
        """The gradient of these micro-batches, real, in at least single precision."""
        gradients = ([plain(x) for x in piece.local().gradients] for piece in self.pieces)
        none: list[Tensor] = []
        return self._mean(self._agreed(lambda: reduce(_sum, gradients, none)), len(self.pieces))

    def read(self, g: Sequence[Tensor], scaled: Scaled, form: Form | None = None) -> Reading:
        """Probe along Dg, with g the gradient of the coming step and D its scaling; h = HDg is scaled in the same way as g.

        √(gᵀDg/hᵀDh) does not depend on the sign of gᵀDHDg, which often changes early on. It is invariant to scaling the loss
        and scales as w does. Works on lists of tensors: peak memory is three copies of the parameters.
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

    def measure(self, vectors: list[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Products: one over all pieces if they are the whole step, else one per piece; and the gradient of the pieces.

        The list of vectors is taken over, and changed.
        """
        found, own = self._agreed(lambda: self._measured(vectors))
        number, alone = max(len(self.pieces), 1), self._in_any(len(found) == 1)
        if not self.pieces:
            own = [torch.zeros_like(plain(p)) for p in self.params]
            found = [own, own]
        if alone:
            found = [reduce(_sum, found)]
        return [self._mean(h, number if alone else 1) for h in found], self._mean(own, number)

    def _measured(self, vectors: list[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Sums over the micro-batches of this process."""
        found: list[list[Tensor]] = []
        own: list[Tensor] = []
        if not self.pieces:
            return found, own
        along = InRange(vectors, self.params)
        for piece in self.pieces:
            local = piece.local()
            h = [plain(x) for x in along.product(partial(piece.source.products_of, local))]
            found = [_sum(found[0], h)] if found and self.whole else [*found, h]
            own = _sum(own, [plain(x) for x in local.gradients])
            if local.forward_trace.modules:
                self.norms = local.forward_trace.norms
        return found, own

    @property
    def trained(self) -> bool:
        """Whether the pieces are training passes, whose gradients add up in `.grad`; otherwise each has its own loss."""
        return bool(self.pieces) and isinstance(self.pieces[0].source, TrainedHessian)

    def take_part(self) -> None:
        """Join the all-reduces of the other processes with zeros, in a process without data."""
        self.measure([])
        self._in_any(False)

    def _mean(self, sums: list[Tensor], number: int) -> list[Tensor]:
        """Mean over this many pieces and over processes; for training passes, an estimate of the sum over the step."""
        divisor = number / self.micro_batches if self.trained else float(number)
        if divisor != 1:
            sums = list(torch._foreach_div(sums, divisor))
        return [mean_over_processes(x.clone()) for x in sums] if world_size() > 1 else sums

    def across(self, products: list[list[Tensor]], form: Callable[[list[Tensor], list[Tensor]], float]) -> float:
        """hᵀDh of the whole step. If only some micro-batches are available: what two of them share, plus the noise of all k.

        E h₁ᵀDh₂ is free of noise, and the mean over k adds 1/k of the noise in E hᵢᵀDhᵢ.
        """
        square = sum(form(h, h) for h in products) / len(products)
        if len(products) == 1:
            return square
        shared = form(products[0], products[1])
        return max(shared + (square - shared) / self.micro_batches, square / self.micro_batches)

    def factor(self, g: Sequence[Tensor], own: Sequence[Tensor]) -> float:
        """What g was multiplied by after the backward pass: clipping, a scaled loss, a sum over micro-batches.

        |g|/|own| if both are of the same batches, even with another dropout mask. If g is of more batches, |g|²/⟨g, own⟩: noise
        that has averaged out in g then does not count as a factor.
        """
        size, shared, squares = inner_products(g, own)
        of_more = not (self.whole and all(piece.source.split for piece in self.pieces))
        if self._in_any(of_more) and shared > 0:
            return size / shared
        return math.sqrt(size / squares) if squares > 0 else 1.0

    def _agreed(self, compute: Callable[[], Any]) -> Any:
        """Run a computation of each process; if it fails in one of them, all raise."""
        failure, found = self.failure, None
        try:
            found = compute() if failure is None else None
        except Exception as error:
            failure = error
        if failure := failed_somewhere(failure, self.params[0].device):
            raise failure
        return found

    def _in_any(self, condition: bool) -> bool:
        """Whether it holds in any process: the number of micro-batches may differ between processes."""
        return any_process(condition, self.params[0].device)


def _sum(before: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    """Sum tensor by tensor; the first list is neither copied nor written to, since it may be part of a graph."""
    return list(torch._foreach_add(before, more)) if before else more


def dot(a: Tensor, b: Tensor) -> float:
    """Dot product in double precision: in single precision, squares can overflow where the numbers themselves do not."""
    small = small_dtype(a.device)
    return sum(float(torch.dot(x.to(small), y.to(small))) for x, y in _pieces(a, b))


def inner_products(a: Sequence[Tensor], b: Sequence[Tensor]) -> tuple[float, float, float]:
    """aᵀa, aᵀb and bᵀb of two lists of tensors, each read as one vector; each number is converted once."""
    found = [_three(*pair) for x, y in zip(a, b) for pair in _pieces(x, y)]
    aa, ab, bb = (sum(values) for values in zip(*found)) if found else (0.0, 0.0, 0.0)
    return aa, ab, bb


def _three(x: Tensor, y: Tensor) -> tuple[float, float, float]:
    x, y = x.to(small_dtype(x.device)), y.to(small_dtype(y.device))
    return float(torch.dot(x, x)), float(torch.dot(x, y)), float(torch.dot(y, y))


def _pieces(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(a.reshape(-1), PIECE), torch.split(b.reshape(-1), PIECE))


def plain(x: Tensor) -> Tensor:
    """The tensor as dense, real, and in at least single precision."""
    return widened(real(dense(x.detach())))
