"""The Fisher matrix of one batch: the mean outer product of per-point gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from infhess.curvature.batch_curvature import derivative
from infhess.curvature.flat import Flat
from infhess.curvature.gauss_newton import BatchGaussNewton, Pair
from infhess.curvature.loss import scalar
from infhess.curvature.no_side_effects import no_side_effects

Sample = Callable[[Tensor], Tensor]


class BatchFisher(BatchGaussNewton):
    """(1/n) Σ g_i g_iᵀ = Jᵀ [(1/n) Σ a_i a_iᵀ] J with a_i the gradient of point i's loss with respect to its outputs.

    If targets are drawn from the model, and the loss of a point is the mean over its d targets, the matrix is multiplied by d:
    its expectation is then the Gauss–Newton matrix.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Callable[..., Tensor],
        batch: Any,
        flat: Flat,
        seed: int,
        pair: Pair | None = None,
        sample: Sample | None = None,
    ) -> None:
        super().__init__(model, loss, batch, flat, seed, pair)
        n, self.scale = len(self.outputs), 1.0
        gradients = self.loss_gradient[0]
        if sample is not None:
            with no_side_effects(flat.live, seed):
                targets = sample(self.outputs.detach())
                gradients = derivative([scalar(loss(self.leaf, targets))], [self.leaf], None)[0]
            self.forward_trace.random, self.scale = True, targets.numel() / n
        self.points_gradients = n * gradients.detach()

    def inner(self, Js: Tensor) -> Tensor:
        """(1/n) Σ a_i a_iᵀ (J s)_i."""
        a = self.points_gradients
        along = (a * Js).flatten(1).sum(1) if a.ndim > 1 else a * Js
        return self.scale / len(a) * a * along.reshape(-1, *(1 for _ in a.shape[1:]))


def sampler_of(loss: Any) -> Sample:
    """How to draw targets from the outputs, for a loss that is a negative log-likelihood."""
    for known, sample in SAMPLERS.items():
        if loss is known or (isinstance(known, type) and isinstance(loss, known)):
            return sample
    raise ValueError(
        f'sample: expected a function from outputs to targets for kind="mc" and the loss {loss!r}; drawing is known for the '
        "cross-entropy, the binary cross-entropy with logits and the mean squared error"
    )


def _classes(outputs: Tensor) -> Tensor:
    p = outputs.movedim(1, -1).softmax(-1)
    return torch.multinomial(p.reshape(-1, p.shape[-1]), 1).reshape(p.shape[:-1])


def _coins(outputs: Tensor) -> Tensor:
    return torch.bernoulli(outputs.sigmoid())


def _normal(outputs: Tensor) -> Tensor:
    """(f − y)² is the negative log-likelihood of a normal y with variance ½."""
    return torch.randn_like(outputs).mul_(0.5**0.5).add_(outputs)


SAMPLERS: dict[Any, Sample] = {
    nn.CrossEntropyLoss: _classes, functional.cross_entropy: _classes,
    nn.BCEWithLogitsLoss: _coins, functional.binary_cross_entropy_with_logits: _coins,
    nn.MSELoss: _normal, functional.mse_loss: _normal,
}  # fmt: skip
