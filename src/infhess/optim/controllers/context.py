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

# Gradients that are this many times longer than those of the loss have been scaled by something.
SCALED = 100.0


@dataclass(frozen=True)
class Context:
    """A step that is about to be made: its batch, gradients, P² and curvature, with the controller's own state.

    Anything expensive is computed when it is first needed.
    """

    state: ControllerState
    base: torch.optim.Optimizer
    params: list[Tensor]
    means: dict[str, Tensor]  # of iterates, flat: the controller's own
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
        """Curvature of the micro-batches of this step, one by one."""
        return self.make_probe()

    @cached_property
    def scaling(self) -> Scaling:
        """P² as it is in use."""
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
        """Whether the base scales gradients by itself."""
        return adaptive(self.base)

    @cached_property
    def gradient(self) -> Tensor | None:
        """g of the coming step, flat; None where there is none."""
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
        """The parameters, flat."""
        return self._flat(self.params)

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        return flattened(tensors, self.like.dtype, self.like.device)

    def gradient_beside(self, own: Tensor) -> Tensor:
        """g of the coming step; the batch's `own` gradient where there is none, or where g was not unscaled yet."""
        g, most = self.gradient, SCALED * float(torch.linalg.vector_norm(own))
        return own if g is None or not self.gradient_length <= most else g.to(own)

    def scaled_note(self, own: float) -> tuple[str, ...]:
        """A note on gradients that are far longer than those of the loss, `own`: a GradScaler has not unscaled them."""
        if not math.inf > self.gradient_length > SCALED * own > 0:
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
    """What the optimizer does from here on."""

    rate: float = math.nan  # multiplies P²g up to the factor of P²; NaN: as before, 0: no step is made
    limit: float = math.inf  # the longest step |Δw|
    momentum: float = 0.0  # around plain sgd
    scaling: Scaling | None = None  # another P²; None: as before
    values: Tensor | None = None  # for a report; None where nothing was estimated
    notes: tuple[str, ...] = ()
