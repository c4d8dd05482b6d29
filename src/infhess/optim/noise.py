"""Whether noise rules: the slope of the loss from the present iterate towards the mean of the last ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infhess.curvature.flat import real

if TYPE_CHECKING:
    from infhess.optim.preconditioned import Preconditioned

# Steps that the slope is averaged over; batches whose slope is further out than so many standard deviations are cut down.
STEPS, OUTLIER = 10, 3.0


def wear(opt: Preconditioned) -> None:
    """Count the step as worn where gᵀ(w − w̄) > 0 on average: w̄ lies downhill, and w is thrown about around it.

    While iterates still travel the mean lags behind and lies uphill. w̄ += 4/(t+4) (w − w̄), about the last quarter of them.
    """
    n, slope = opt._numbers, 0.0
    for p in opt._params():
        own = opt._learnt.of(p)
        if "mean" not in own:
            return
        w = real(p.detach())
        if n.steps <= 1:
            own["mean"].copy_(w)
        away = w.to(own["mean"].dtype) - own["mean"]
        slope += _dot(p.grad, away)
        own["mean"] += 4 / (n.steps + 4) * away
    share = max(1 / n.steps, 1 / STEPS)
    if n.steps > 5:
        bound = OUTLIER * n.slope_squares**0.5
        slope = max(-bound, min(bound, slope))
    n.slope += share * (slope - n.slope)
    n.slope_squares += share * (slope**2 - n.slope_squares)
    n.worn += float(n.slope > 0 and n.steps > 5)


def _dot(grad: Tensor | None, away: Tensor) -> float:
    found = 0.0 if grad is None or grad.is_sparse else float(torch.sum(real(grad.detach()).to(away.dtype) * away))
    return found if abs(found) < float("inf") else 0.0
