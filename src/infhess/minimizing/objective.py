"""The mean of a loss over data, as a function of one flat vector of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.curvature.batch_curvature import derivative
from infhess.curvature.batches import Batch, size_of
from infhess.curvature.flat import Flat
from infhess.curvature.loss import check_loss, scalar
from infhess.curvature.no_side_effects import no_side_effects


class Value(NamedTuple):
    """L(w) and ∇L(w) over this many points."""

    loss: float
    gradient: Tensor
    points: int


class Objective:
    """L(w) = mean of loss(batch) over data points; vectors are in double precision, whatever the parameters' dtype."""

    def __init__(self, loss: Callable[[Batch], Tensor], params: Iterable[Tensor]) -> None:
        check_loss(loss)
        self.loss, self.flat = loss, Flat(params)
        self.size, self.wide = self.flat.size, small_dtype(self.flat.device)

    @property
    def weights(self) -> Tensor:
        """The present parameters, flat."""
        return self.flat.pack(self.flat.live).to(self.wide)

    @property
    def eps(self) -> float:
        """eps of the coarsest dtype among the parameters."""
        return max(torch.finfo(p.dtype).eps for p in self.flat.live)

    def put(self, w: Tensor) -> Tensor:
        """Write w into the parameters; return it as rounded to their dtype."""
        for p, v in zip(self.flat.live, self.flat.unpack(w.to(self.flat.dtype))):
            p.data.copy_(v)
        return self.weights

    def at(self, batch: Batch, seed: int) -> Value:
        """Loss and gradient of one batch, with this seed for dropout."""
        with no_side_effects(self.flat.live, seed):
            loss = self.loss(batch)
            if isinstance(loss, Tensor) and loss.numel() == 1 and not bool(torch.isfinite(loss.detach())):
                return Value(math.inf, torch.zeros(self.size, dtype=self.wide, device=self.flat.device), size_of(batch))
            value = scalar(loss)
            gradient = self.flat.pack(derivative([value], self.flat.live, None))
        return Value(float(value.detach()), gradient.to(self.wide), size_of(batch))

    def over(self, batches: Iterable[Any]) -> Value:
        """Σ points · (loss, gradient) / Σ points over several batches; infinite if the loss is not finite."""
        loss, points = 0.0, 0
        gradient = torch.zeros(self.size, dtype=self.wide, device=self.flat.device)
        for seed, batch in enumerate(batches):
            one = self.at(batch, seed)
            loss, points = loss + one.points * one.loss, points + one.points
            gradient.add_(one.gradient, alpha=one.points)
        loss = loss if bool(torch.isfinite(gradient).all()) else math.inf
        return Value(loss / points, gradient / points, points)


def additive(objective: Objective, first: Batch, second: Batch, whole: Value) -> bool:
    """Whether the loss of two joined batches is the mean of theirs, weighted by points; if not, batches are kept whole."""
    parts = objective.over([first, second])
    scale = max(abs(parts.loss), abs(whole.loss), float(torch.linalg.vector_norm(parts.gradient)))
    apart = float(torch.linalg.vector_norm(whole.gradient - parts.gradient))
    return bool(max(abs(whole.loss - parts.loss), apart) <= 10 * objective.eps**0.5 * scale)
