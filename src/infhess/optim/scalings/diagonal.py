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

    name, rule, beta, eps = "diagonal", RATE_FREE, 0.999, 1e-8

    def fresh(self, w: Tensor) -> Own:
        """v = 0."""
        return {SQUARES: torch.zeros_like(w)}

    def begin(self, owns: Sequence[Own], grads: Sequence[Tensor], share: Share = alone) -> None:
        """Nothing: the first gradient is scaled by its own squares."""

    def ahead(self, own: Own, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
        """x/(√v̂ + ε)."""
        return divided(own[SQUARES], float(own["step"]) + 1, beta, eps, g, x)

    def directions(self, step: Gradients) -> tuple[list[Tensor], float]:
        """Directions of all parameters at once."""
        return directions(step.owns, step.ages, step.beta, step.eps, step.grads)

    def flops(self, shape: Sequence[int]) -> int:
        """A few per entry."""
        return 6 * math.prod(shape)


def divided(squares: Tensor, count: float, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
    """x/(√v̂ + ε), where v̂ includes g as its `count`-th gradient."""
    v = (squares * beta).addcmul_(g, g, value=1 - beta)
    v.masked_fill_(v == 0, torch.inf)  # entries that never had a gradient do not move
    v.div_(1 - beta**count).sqrt_().add_(max(eps, TINY))
    return torch.div(x, v, out=v)


def directions(
    owns: Sequence[Own], counts: Sequence[float], beta: float, eps: float, grads: list[Tensor]
) -> tuple[list[Tensor], float]:
    """d and a number r with D g = r d for each parameter; updates `step` and v, which has seen `counts` gradients so far.

    One new tensor per parameter: allocating memory costs more than writing to it.
    """
    torch._foreach_add_([own["step"] for own in owns], ONE, alpha=1.0)
    squares = [own[SQUARES] for own in owns]
    torch._foreach_mul_(squares, beta)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta)
    found = list(torch._foreach_sqrt(squares))
    roots = [math.sqrt(1 - beta ** (n + 1)) for n in (counts[:1] if min(counts) == max(counts) else counts)]
    torch._foreach_add_(found, [max(eps * r, TINY) for r in roots] if len(roots) > 1 else max(eps * roots[0], TINY))
    for g, d in zip(grads, found):
        torch.div(g, d, out=d)
    if len(roots) == 1:
        return found, roots[0]
    torch._foreach_mul_(found, roots)
    return found, 1.0
