"""Adam's scaling of gradients: D = 1/(√v̂ + ε), v a moving average of squared gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# No divisor is smaller.
TINY = 1e-37

Own = dict[str, Any]  # the state of a parameter


def ahead(own: Own, beta: float, eps: float, g: Tensor, x: Tensor) -> Tensor:
    """D x, with D as the coming step will have it with the gradient g."""
    v: Tensor = (own["exp_avg_sq"] * beta).addcmul_(g, g, value=1 - beta)
    v.masked_fill_(v == 0, torch.inf)  # what has never had a gradient does not move
    v.div_(1 - beta ** (float(own["step"]) + 1)).sqrt_().add_(max(eps, TINY))
    return torch.div(x, v, out=v)


def directions(owns: Sequence[Own], beta: float, eps: float, grads: list[Tensor]) -> list[Tensor]:
    """D g of each parameter; v and the number of its steps are brought up to date."""
    for own in owns:
        own["step"] += 1
    squares = [own["exp_avg_sq"] for own in owns]
    torch._foreach_mul_(squares, beta)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta)
    # One new tensor a parameter: new memory costs more than writing to what there is.
    found = torch._foreach_sqrt(squares)
    roots = [(1 - beta ** float(own["step"])) ** 0.5 for own in owns]
    torch._foreach_add_(found, [max(eps * root, TINY) for root in roots])
    torch._foreach_reciprocal_(found)
    torch._foreach_mul_(found, grads)
    torch._foreach_mul_(found, roots)
    return list(found)
