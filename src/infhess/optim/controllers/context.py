"""What a controller knows about a step, and what it decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.flat import dense, flattened
from infhess.optim.base_optimizers import adaptive, sqrt_scaling
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.preconditioning.directions import like_of
from infhess.optim.rate.probe import Probe
from infhess.preconditioners.scaling import Scaling

# Gradients this many times longer than those of the loss must have been scaled, e.g. by a GradScaler.
SCALED = 100.0


@dataclass(frozen=True)
class Context:
    """The step about to be made: its batch, gradients, P² and curvature, and the controller's own state.

    Anything expensive is computed when it is first needed.
    """

    state: ControllerState
    base: torch.optim.Optimizer
    params: list[Tensor]
    means: dict[str, Tensor]  # means of iterates, flat, updated by the controller
    batch: Batch
    points: int
    rank: int
    pool: list[Batch]  # batches kept until an estimate is made
    make_source: Callable[[], Hessian]
    make_probe: Callable[[], Probe]
    make_scaling: Callable[[], Scaling]

    @cached_property
    def source(self) -> Hessian:
        """The curvature of the loss at the present parameters."""
        return self.make_source()

    @cached_property
    def probe(self) -> Probe:
        """Curvature probe on the micro-batches of this step."""
        return self.make_probe()

    @cached_property
    def scaling(self) -> Scaling:
        """P² as currently in use."""
        return self.make_scaling()

    @property
    def cost(self) -> tuple[int, int]:
        """Hessian-vector products taken for this decision, and the data points that they were taken with."""
        products, points = self.probe.cost if "probe" in self.__dict__ else (0, 0)
        if "source" not in self.__dict__:
            return products, points
        return products + self.source.products, points + self.source.product_points

    @cached_property
    def like(self) -> Tensor:
        """An empty tensor with the dtype and the device of flat vectors."""
        return like_of(self.params)

    @cached_property
    def adaptive(self) -> bool:
        """Whether the base optimizer scales gradients itself."""
        return adaptive(self.base)

    @cached_property
    def gradient(self) -> Tensor | None:
        """g of the coming step, flat; None if no parameter has a gradient."""
        grads = [p.grad for p in self.params]
        if all(g is None for g in grads):
            return None
        return self._flat([torch.zeros_like(p) if g is None else dense(g) for p, g in zip(self.params, grads)])

    @cached_property
    def gradient_length(self) -> float:
        """|g| of the coming step; 0 without gradients."""
        return 0.0 if self.gradient is None else float(torch.linalg.vector_norm(self.gradient))

    @cached_property
    def weights(self) -> Tensor:
        """The parameters as a flat vector."""
        return self._flat(self.params)

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        return flattened(tensors, self.like.dtype, self.like.device)

    def gradient_beside(self, own: Tensor) -> Tensor:
        """g of the coming step; the batch's `own` gradient if there is no g, or if a GradScaler still scales it."""
        g, most = self.gradient, SCALED * float(torch.linalg.vector_norm(own))
        return own if g is None or not self.gradient_length <= most else g.to(own)

    def scaled_note(self, own: float) -> tuple[str, ...]:
        """A note if gradients are far longer than `own`, those of the loss: a GradScaler has not been unscaled."""
        if not math.inf > self.gradient_length > SCALED * own > 0:
            return ()
        return (
            f"gradients are {self.gradient_length / own:.3g} times those of the loss; with a GradScaler, call "
            "scaler.unscale_(optimizer) before observe",
        )

    def root(self, g: Tensor) -> Tensor | None:
        """The square root of the base's own scaling at the coming step, given its gradient g."""
        return sqrt_scaling(self.base, g, g.square()) if self.adaptive else None


@dataclass(frozen=True)
class Decision:
    """What the optimizer does from the coming step on."""

    rate: float = math.nan  # multiplies P²g without the factor of P²; NaN: unchanged, 0: no step
    limit: float = math.inf  # the longest step |Δw|
    momentum: float = 0.0  # used around SGD without momentum
    scaling: Scaling | None = None  # a new P²; None: unchanged
    values: Tensor | None = None  # eigenvalues for a report; None if nothing was estimated
    notes: tuple[str, ...] = ()
