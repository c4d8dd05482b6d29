"""A curvature probe: how far the loss can be followed along a direction, by one Hessian-vector product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.flat import dense, real, shaped
from infhess.optim.distributed import mean_over_processes, world_size

Scaled = Callable[[int, Tensor], Tensor]  # D x of parameter i


class Reading(NamedTuple):
    """|g|, |Dg| and ½ log(gᵀDg/hᵀDh), NaN where there is no gradient or no curvature along it."""

    gradient: float
    direction: float
    log_ratio: float


class Probe:
    """The gradient of one batch, kept with its graph until the step that it belongs to is made.

    With several processes each has its own batch, and h is the mean over them: all read the same.
    """

    def __init__(self, source: Hessian, batch: Batch) -> None:
        self.source, self.local = source, source.local(batch)
        self.params = source.flat.live

    def own(self) -> list[Tensor]:
        """The gradient of the probed batch, real, in single precision at the least."""
        return [_plain(g) for g in self.local.gradients]

    def read(self, g: Sequence[Tensor], scaled: Scaled, *, accumulated: bool) -> Reading:
        """Along Dg, with g the gradient of the coming step and D its scaling; h = HDg is scaled as g is.

        √(gᵀDg/hᵀDh) needs no sign of gᵀDHDg, which changes often early on. Scaling the loss does not change it, and it scales
        as w does. Lists of tensors throughout: the peak is three copies of the parameters.
        """
        p = [scaled(i, x) for i, x in enumerate(g)]
        along, gradient, direction = total(g, p), norm(g), norm(p)
        if not (0 < along < math.inf):
            return Reading(gradient, direction, math.nan)
        h = self.source.products_of(self.local, [shaped(x, w) for x, w in zip(p, self.params)])
        del p
        h = [mean_over_processes(_plain(x)) for x in h]
        factor = self._factor(g, accumulated)
        across = sum(dot(x, scaled(i, x)) for i, x in enumerate(h)) * factor**2
        if not 0 < across < math.inf:
            return Reading(gradient, direction, math.nan)
        return Reading(gradient, direction, 0.5 * (math.log(along) - math.log(across)))

    def _factor(self, g: Sequence[Tensor], accumulated: bool) -> float:
        """What g was multiplied by on its way from the loss: clipping, a scaled loss, a sum over micro-batches.

        |g|/|own| where g is of the probed batch alone, also if dropout drew another mask. Where it is of more batches,
        |g|²/⟨g, own⟩: noise that has averaged out in g then does not count as a factor.
        """
        squares = shared = 0.0
        for x, y in zip(g, self.own()):
            y = mean_over_processes(y.clone() if world_size() > 1 else y)
            squares, shared = squares + dot(y, y), shared + dot(x, y)
        length = norm(g)
        if accumulated and shared > 0:
            return length**2 / shared
        return length / math.sqrt(squares) if squares > 0 else 1.0


# Numbers of a dot product that are converted to double precision at a time: no copy of a large tensor is made.
PIECE = 2**14


def dot(a: Tensor, b: Tensor) -> float:
    """In double precision: squares of single precision overflow where the numbers themselves do not."""
    small = small_dtype(a.device)
    pieces = zip(torch.split(a.reshape(-1), PIECE), torch.split(b.reshape(-1), PIECE))
    return sum(float(torch.dot(x.to(small), y.to(small))) for x, y in pieces)


def total(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Σ of the dot products of pairs."""
    return sum(dot(x, y) for x, y in zip(a, b))


def norm(a: Sequence[Tensor]) -> float:
    """The length of all these tensors as one vector."""
    return math.sqrt(total(a, a)) if a else 0.0


def _plain(x: Tensor) -> Tensor:
    """Dense, real, in single precision at the least."""
    return wide(real(dense(x.detach())))


def wide(x: Tensor) -> Tensor:
    """In single precision at the least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
