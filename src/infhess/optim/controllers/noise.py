"""Whether noise dominates: the slope of the loss along the way of the mean of the iterates."""

from __future__ import annotations

import torch
from torch import Tensor

from infhess.curvature.flat import real
from infhess.optim.controllers.context import Context

# Weights a of the present iterate in two means, w̄ += a/(t+a) (w − w̄): one of about the last quarter, one that lags behind.
RECENT, LAGGING = 4.0, 1.5
# The slope is averaged over ten steps, later over an eighth of all; batches that are further out than so many standard
# deviations are cut down.
SHORTEST, SHARE, OUTLIER = 10, 8.0, 3.0


def count_noise_dominated(context: Context) -> None:
    """Count the step as noise-dominated where the mean of the iterates has ceased to descend: gᵀ(w̄ − w̄') ≥ 0 on average.

    w̄ is a mean of recent iterates and w̄' one that lags behind. Single iterates may be thrown about by noise without harm as
    long as their mean travels downhill; once it does not, shorter steps are what brings it further.
    """
    n, slope = context.state, 0.0
    for p in context.params:
        slope += _dot(p.grad, _way(context.tensors(p), real(p.detach()), n.steps))
    share = max(1 / n.steps, min(1 / SHORTEST, SHARE / (n.steps + SHARE)))
    if n.steps > 5:
        bound = OUTLIER * n.slope_squares**0.5
        slope = max(-bound, min(bound, slope))
    n.slope += share * (slope - n.slope)
    n.slope_squares += share * (slope**2 - n.slope_squares)
    n.noise_dominated += float(n.slope > 0 and n.steps > SHARE)


def _way(own: dict[str, Tensor], w: Tensor, steps: float) -> Tensor:
    """w̄ − w̄' of a parameter, with the present iterate counted."""
    w = w.to(torch.promote_types(w.dtype, torch.float32))
    for name, weight in (("recent", RECENT), ("lagging", LAGGING)):
        if name not in own:
            own[name] = torch.zeros_like(w)
        own[name].lerp_(w, weight / (steps + weight) if steps > 1 else 1.0)
    return own["recent"] - own["lagging"]


def _dot(grad: Tensor | None, way: Tensor) -> float:
    found = 0.0 if grad is None or grad.is_sparse else float(torch.sum(real(grad.detach()).to(way.dtype) * way))
    return found if abs(found) < float("inf") else 0.0
