"""The Gauss–Newton matrix of one batch: Jᵀ H_L J, by three reverse passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import Flat
from infhess.curvature.local import Local, derivative, scalar
from infhess.curvature.untouched import TwiceDifferentiable, untouched


class GaussNewtonLocal(Local):
    """J s = d(Jᵀu)/du · s, linear in the dummy u; then H_L J s at the outputs; then Jᵀ of that."""

    def __init__(
        self, model: Callable[[Any], Tensor], loss: Callable[..., Tensor], batch: Any, flat: Flat, seed: int
    ) -> None:
        self.flat, self.seed = flat, seed
        inputs, targets = pair(batch)
        with untouched(flat.live, seed) as self.watch:
            with TwiceDifferentiable():
                self.outputs = one_tensor(model(inputs))
            self.dummy = torch.zeros_like(self.outputs, requires_grad=True)
            self.pulled = derivative([self.outputs], flat.live, [self.dummy], create_graph=True)
            self.leaf = self.outputs.detach().requires_grad_()
            self.loss_gradient = derivative([scalar(loss(self.leaf, targets))], [self.leaf], None, create_graph=True)

    def gradient(self) -> Tensor:
        """The gradient of the loss, flat."""
        with untouched(self.flat.live, self.seed):
            return self.flat.pack(derivative([self.outputs], self.flat.live, self.loss_gradient, retain_graph=True))

    def product(self, s: Tensor) -> Tensor:
        """Jᵀ H_L J s."""
        with untouched(self.flat.live, self.seed):
            Js = derivative(self.pulled, [self.dummy], self.flat.unpack(s), retain_graph=True)
            HJs = derivative(self.loss_gradient, [self.leaf], Js, retain_graph=True)
            return self.flat.pack(derivative([self.outputs], self.flat.live, HJs, retain_graph=True))


def pair(batch: Any) -> tuple[Any, Any]:
    """(inputs, targets) of a batch."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        shown = f"a {type(batch).__name__} of {len(batch)}" if isinstance(batch, list | tuple) else type(batch).__name__
        raise TypeError(f"batch: GaussNewton expects pairs (inputs, targets), got {shown}")
    return batch[0], batch[1]


def one_tensor(outputs: Any) -> Tensor:
    """The outputs of the model, which must be one tensor that depends on the parameters."""
    if not isinstance(outputs, Tensor):
        raise TypeError(f"model: expected one output tensor, got {type(outputs).__name__}; wrap the model to return it")
    if not outputs.requires_grad:
        raise ValueError("model: its outputs do not depend on any parameter; does it detach, or run under no_grad?")
    return outputs
