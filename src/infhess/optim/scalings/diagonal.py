"""Adam's scaling of gradients: D = 1/(√v̂ + ε), v a moving average of squared gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# No divisor is smaller.
TINY = 1e-37
# A tensor: a number would be wrapped anew for each parameter.
ONE = torch.ones(())

Own = dict[str, Any]  # the state of a parameter


def ahead(own: Own, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
    """D x, with D as the coming step will have it with the gradient g."""
    v: Tensor = (own["exp_avg_sq"] * beta).addcmul_(g, g, value=1 - beta)
    v.masked_fill_(v == 0, torch.inf)  # what has never had a gradient does not move
    v.div_(1 - beta ** (float(own["step"]) + 1)).sqrt_().add_(max(eps, TINY))
    return torch.div(x, v, out=v)


def directions(
    owns: Sequence[Own], ages: Sequence[float], beta: float, eps: float, grads: list[Tensor]
) -> tuple[list[Tensor], float]:
    """d and a number r with D g = r d for each parameter; v and the number of its steps, `ages` so far, are brought up to date.

    One new tensor per parameter: new memory costs more than writing to what there is.
    """
    torch._foreach_add_([own["step"] for own in owns], ONE, alpha=1.0)
    squares = [own["exp_avg_sq"] for own in owns]
    torch._foreach_mul_(squares, beta)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta)
    found = list(torch._foreach_sqrt(squares))
    roots = [math.sqrt(1 - beta ** (age + 1)) for age in (ages[:1] if min(ages) == max(ages) else ages)]
    torch._foreach_add_(found, [max(eps * r, TINY) for r in roots] if len(roots) > 1 else max(eps * roots[0], TINY))
    for g, d in zip(grads, found):
        torch.div(g, d, out=d)
    if len(roots) == 1:
        return found, roots[0]
    torch._foreach_mul_(found, roots)
    return found, 1.0
