"""Whether noise dominates: the slope of the loss along the way of the mean of the iterates."""

from __future__ import annotations

import math

import torch

from infhess.optim.controllers.context import Context

# Weights a of the present iterate in two means, w̄ += a/(t+a) (w − w̄): one of about the last quarter, one that lags behind.
WEIGHTS = {"recent": 4.0, "lagging": 1.5}
# The slope is averaged over ten steps, later over an eighth of all; batches that are further out than so many standard
# deviations are cut down.
SHORTEST, SHARE, OUTLIER = 10, 8.0, 3.0


def count_noise_dominated(context: Context) -> None:
    """Count the step as noise-dominated where the mean of the iterates has ceased to descend: gᵀ(w̄ − w̄') ≥ 0 on average.

    w̄ is a mean of recent iterates and w̄' one that lags behind. Single iterates may be thrown about by noise without harm as
    long as their mean travels downhill; once it does not, shorter steps are what brings it further.
    """
    n, slope = context.state, _slope(context)
    share = max(1 / n.steps, min(1 / SHORTEST, SHARE / (n.steps + SHARE)))
    if n.steps > 5:
        bound = OUTLIER * n.slope_squares**0.5
        slope = max(-bound, min(bound, slope))
    n.slope += share * (slope - n.slope)
    n.slope_squares += share * (slope**2 - n.slope_squares)
    n.noise_dominated += float(n.slope > 0 and n.steps > SHARE)


def _slope(context: Context) -> float:
    """gᵀ(w̄ − w̄'), with the present iterate counted; 0 without a finite gradient."""
    w, means, t = context.weights, context.means, context.state.steps
    for name, a in WEIGHTS.items():
        if name not in means:
            means[name] = w.clone()
        means[name].lerp_(w, a / (t + a) if t > 1 else 1.0)
    g = context.gradient
    slope = 0.0 if g is None else float(torch.dot(g, means["recent"] - means["lagging"]))
    return slope if math.isfinite(slope) else 0.0
