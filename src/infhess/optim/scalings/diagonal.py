"""Adam's scaling of gradients: D = 1/(√v̂ + ε), v a moving average of squared gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from infhess.optim.rate.settings import RATE_FREE
from infhess.optim.scalings.gradient_scaling import SQUARES, Gradients, GradientScaling, Own, Share, alone

# Smallest divisor.
TINY = 1e-37
# A tensor: a Python number would be wrapped again for each parameter.
ONE = torch.ones(())


class DiagonalScaling(GradientScaling):
    """Each entry by itself: state and cost are those of Adam without momentum."""

    name, rule, beta, eps = "diagonal", RATE_FREE, 0.999, 1e-3

    def fresh(self, w: Tensor) -> Own:
        """v = 0."""
        return {SQUARES: torch.zeros_like(w)}

    def begin(self, owns: Sequence[Own], grads: Sequence[Tensor], share: Share = alone) -> None:
        """Nothing: the first gradient is scaled by its own squares."""

    def ahead(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
        """x/(√v̂ + ε)."""
        return divided(own[SQUARES], float(own["step"]) + 1, beta, eps, g, x)

    def directions(self, step: Gradients) -> list[Tensor]:
        """Directions of all parameters at once."""
        counted(step.owns)
        return directions(step.owns, [age + 1 for age in step.ages], step.beta, step.eps, step.grads)


def divided(squares: Tensor, count: float, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
    """x/(√v̂ + ε), where v̂ includes g as its `count`-th gradient."""
    v = (squares * beta).addcmul_(g, g, value=1 - beta)
    v.masked_fill_(v == 0, torch.inf)  # entries that never had a gradient do not move
    v.div_(1 - beta**count).sqrt_().add_(max(eps, TINY))
    return torch.div(x, v, out=v)


def counted(owns: Sequence[Own]) -> None:
    """Count one more gradient of each parameter."""
    torch._foreach_add_([own["step"] for own in owns], ONE, alpha=1.0)


def directions(
    owns: Sequence[Own], ages: Sequence[float], beta: float, eps: float, grads: list[Tensor]
) -> list[Tensor]:
    """Dg for each parameter; updates v, which has seen `ages` gradients with this one. That is also what "step" says."""
    squares, eps = [own[SQUARES] for own in owns], max(eps, TINY)
    if _fusible(squares, grads):
        found = [torch.zeros_like(g) for g in grads]
        # Adam without momentum, from zero, with a learning rate of −1: the means of gradients are the gradients themselves.
        torch._fused_adam_(
            found, grads, grads, squares, [], [own["step"] for own in owns],
            lr=-1.0, beta1=0.0, beta2=beta, weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
        )  # fmt: skip
        return found
    torch._foreach_mul_(squares, beta)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta)
    found = list(torch._foreach_sqrt(squares))
    torch._foreach_div_(found, [math.sqrt(1 - beta**n) for n in ages])
    torch._foreach_add_(found, eps)
    for g, d in zip(grads, found):
        torch.div(g, d, out=d)
    return found


def _fusible(squares: Sequence[Tensor], grads: Sequence[Tensor]) -> bool:
    """Whether torch's fused kernel applies: on CPUs it reads memory in order, and other devices need "step" on the device."""
    return all(
        g.dtype is v.dtype and g.is_cpu and g.is_contiguous() and v.is_contiguous() for g, v in zip(grads, squares)
    )
