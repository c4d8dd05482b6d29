"""What a controller gets to know of a step, and what it decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.flat import dense, length, real
from infhess.optim.base_optimizers import divisor, sqrt_scaling
from infhess.optim.controllers.controller_state import ControllerState
from infhess.scaling import Scaling

# Gradients so many times longer than those of the loss were scaled by something.
SCALED = 100.0


@dataclass(frozen=True)
class Context:
    """A step that is about to be made: its batch, gradients, P² and curvature, with the controller's own state.

    What costs something is made when it is first asked for.
    """

    state: ControllerState
    base: torch.optim.Optimizer
    params: list[Tensor]
    tensors: Callable[[Tensor], dict[str, Tensor]]  # the controller's own tensors of a parameter
    batch: Batch
    points: int
    rank: int
    pool: list[Batch]  # batches kept until an estimate is made
    make_source: Callable[[], Hessian]
    make_scaling: Callable[[], Scaling]

    @cached_property
    def source(self) -> Hessian:
        """The curvature of the loss at the present parameters."""
        return self.make_source()

    @cached_property
    def scaling(self) -> Scaling:
        """P² as it is in use."""
        return self.make_scaling()

    @cached_property
    def adaptive(self) -> bool:
        """Whether the base scales gradients by itself."""
        return divisor(self.base) is not None

    @cached_property
    def gradient_length(self) -> float:
        """|g| of the coming step; 0 without gradients."""
        grads = [real(p.grad) for p in self.params if p.grad is not None and not p.grad.is_sparse]
        return length([grads]) if grads else 0.0

    def gradient(self, own: Tensor) -> Tensor:
        """g of the coming step, flat; that of the batch, `own`, where there is none."""
        if all(p.grad is None for p in self.params):
            return own
        parts = [torch.zeros_like(p) if p.grad is None else dense(p.grad) for p in self.params]
        return torch.cat([real(g.detach()).reshape(-1).to(own) for g in parts])

    def scaled_note(self, own: float) -> tuple[str, ...]:
        """A word on gradients that are far longer than those of the loss, `own`: a GradScaler has not unscaled them."""
        if not self.gradient_length > SCALED * own > 0:
            return ()
        return (
            f"gradients are {self.gradient_length / own:.3g} times those of the loss; with a GradScaler, call "
            "scaler.unscale_(optimizer) before observe",
        )

    def root(self, g: Tensor) -> Tensor | None:
        """The root of the base's own scaling, as the coming step will have it with the gradient g."""
        return sqrt_scaling(self.base, g, g.square()) if self.adaptive else None


@dataclass(frozen=True)
class Decision:
    """What the optimizer is to do from here on.

    Attributes:
        rate: what multiplies P²g up to the factor of P²; NaN: as before, 0: no step is made.
        limit: the longest step |Δw|.
        momentum: around plain sgd.
        scaling: another P²; None: as before.
        values, notes: for a report; None where nothing was estimated.

    """

    rate: float = math.nan
    limit: float = math.inf
    momentum: float = 0.0
    scaling: Scaling | None = None
    values: Tensor | None = None
    notes: tuple[str, ...] = ()
