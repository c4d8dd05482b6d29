"""What RateFree asks of a scaling D: a symmetric positive operator that turns a gradient into a direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from infhess.optim.rate.settings import RateFreeRule

Own = dict[str, Any]  # the state of a parameter
# Evaluates a function of stacks of matrices; several processes may share the matrices among them.
Share = Callable[..., tuple[Tensor, ...]]
SQUARES = "exp_avg_sq"


def alone(function: Callable[..., tuple[Tensor, ...]], *stacks: Tensor) -> tuple[Tensor, ...]:
    """Each process has whole parameters, and evaluates the function by itself."""
    return function(*stacks)


class Gradients(NamedTuple):
    """The gradients of a step, the state of each parameter and its number of gradients so far; β₂ and ε."""

    owns: Sequence[Own]
    ages: Sequence[float]
    grads: list[Tensor]
    beta: float
    eps: float
    share: Share = alone

    def of(self, chosen: Sequence[int]) -> Gradients:
        """The same for these parameters alone."""
        owns, ages = [self.owns[i] for i in chosen], [self.ages[i] for i in chosen]
        return self._replace(owns=owns, ages=ages, grads=[self.grads[i] for i in chosen])


class GradientScaling(ABC):
    """How gradients are scaled. State belongs to parameters, as tensors for checkpoints; the scaling itself is stateless.

    `own["step"]` counts the gradients of a parameter. D at the coming step includes the gradient of that step.
    """

    name: ClassVar[str]
    rule: ClassVar[RateFreeRule]  # the constants of the learning-rate rule for this scaling
    beta: ClassVar[float]  # default of β₂
    eps: ClassVar[float]  # default of ε, in units of the largest root mean square of the gradient at a probe

    @abstractmethod
    def fresh(self, w: Tensor) -> Own:
        """State tensors of a real parameter before its first gradient; on the meta device, for names and shapes only."""

    def needs_whole(self, shape: Sequence[int]) -> bool:
        """Whether it needs the whole of a parameter of this shape, not only the part in this process."""
        return False

    def ready(self, owns: Iterable[Own]) -> bool:
        """Whether D is known, either from the start or learnt from a first gradient."""
        return True

    @abstractmethod
    def begin(self, owns: Sequence[Own], grads: Sequence[Tensor], share: Share = alone) -> None:
        """Learn from first gradients, if D is not known before them."""

    @abstractmethod
    def ahead(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
        """D x, with D at the coming step, given its gradient g."""

    def paired(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Two tensors whose dot product is xᵀDy, with the same D as in `ahead`."""
        return x, self.ahead(own, beta, eps, g, y)

    @abstractmethod
    def directions(self, step: Gradients) -> list[Tensor]:
        """D g for each parameter; updates their state."""

    def shapes(self, w: Tensor) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the state tensors of a real parameter."""
        found = self.fresh(torch.empty(w.shape, dtype=w.dtype, device="meta"))
        return {name: tuple(t.shape) for name, t in found.items()}
