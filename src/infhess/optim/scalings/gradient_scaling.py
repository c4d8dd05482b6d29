"""What RateFree asks of a scaling D: a symmetric positive operator that turns a gradient into a direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from infhess.optim.rate.settings import RateFreeRule

Own = dict[str, Any]  # the state of a parameter
# Evaluates a function of stacks of matrices, each by one of several processes.
Share = Callable[..., tuple[Tensor, ...]]
SQUARES = "exp_avg_sq"


def alone(function: Callable[..., tuple[Tensor, ...]], *stacks: Tensor) -> tuple[Tensor, ...]:
    """Where each process has all of a parameter, it evaluates all by itself."""
    return function(*stacks)


class Gradients(NamedTuple):
    """Those of a step, with the state of each parameter and how many gradients it is of; β₂ and ε."""

    owns: Sequence[Own]
    ages: Sequence[float]
    grads: list[Tensor]
    beta: float
    eps: float
    share: Share = alone

    def of(self, chosen: Sequence[int]) -> Gradients:
        """Of these parameters alone."""
        owns, ages = [self.owns[i] for i in chosen], [self.ages[i] for i in chosen]
        return self._replace(owns=owns, ages=ages, grads=[self.grads[i] for i in chosen])


class GradientScaling(ABC):
    """How gradients are scaled. State is per parameter, in tensors that go into checkpoints; a scaling itself has none.

    `own["step"]` counts the gradients of a parameter. D of the coming step contains the gradient of that step.
    """

    name: ClassVar[str]
    rule: ClassVar[RateFreeRule]  # the constants of the learning rate that go with it
    beta: ClassVar[float]  # β₂ by default
    eps: ClassVar[float]  # ε by default, in units of the root mean square of the gradient

    @abstractmethod
    def fresh(self, w: Tensor) -> Own:
        """State tensors of a real parameter that has had no gradient; on the meta device, their names and shapes."""

    def needs_whole(self, shape: Sequence[int]) -> bool:
        """Whether it needs all of a parameter of this shape, and not the part that a process has."""
        return False

    def ready(self, owns: Iterable[Own]) -> bool:
        """Whether D is known of any parameter before its first gradient, or has been learnt."""
        return True

    @abstractmethod
    def begin(self, owns: Sequence[Own], grads: Sequence[Tensor], share: Share = alone) -> None:
        """Learn what is needed from first gradients, where D is not known before them."""

    @abstractmethod
    def ahead(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
        """D x, with D as the coming step will have it with the gradient g."""

    def paired(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Two tensors whose dot product is xᵀDy, with the same D."""
        return x, self.ahead(own, beta, eps, g, y)

    @abstractmethod
    def directions(self, step: Gradients) -> tuple[list[Tensor], float]:
        """d and a number r with D g = r d for each parameter; brings their state up to date."""

    @abstractmethod
    def flops(self, shape: Sequence[int]) -> int:
        """Multiplications and additions of one step for a parameter of this shape, in the long run."""

    def shapes(self, w: Tensor) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the state tensors of a real parameter."""
        found = self.fresh(torch.empty(w.shape, dtype=w.dtype, device="meta"))
        return {name: tuple(t.shape) for name, t in found.items()}

    def numbers(self, shape: Sequence[int]) -> int:
        """Numbers of state for a parameter of this shape."""
        return sum(t.numel() for t in self.fresh(torch.empty(tuple(shape), device="meta")).values())
