"""Whether noise dominates: the slope of the loss along the path of the mean iterate."""

from __future__ import annotations

import math

import torch

from infhess.curvature.batch_curvature import BatchCurvature
from infhess.curvature.batches import size_of
from infhess.optim.controllers.context import Context
from infhess.optim.rate.probe import dot
from infhess.preconditioners.scaling import Scaling

# Weights a of the present iterate in two means, w̄ += a/(t+a) (w − w̄): one over about the last quarter, one that lags.
WEIGHTS = {"recent": 4.0, "lagging": 1.5}
# The slope is averaged over ten steps, later over an eighth of all steps; batches beyond this many standard deviations
# are clipped.
SHORTEST, SHARE, OUTLIER = 10, 8.0, 3.0
# The mean iterate clearly descends if the mean slope exceeds this share of its root mean square: .6 to .9 while the loss
# falls fast, below .3 near the noise floor.
CLEAR = 1 / 3
# Slices of a batch from which the noise of its gradient is estimated.
SLICES = 8


def count_noise_dominated(context: Context) -> None:
    """Count the step as noise-dominated if the mean iterate no longer descends: gᵀ(w̄ − w̄') ≥ 0 on average.

    w̄ is a mean of recent iterates and w̄' one that lags behind. Noise may scatter single iterates without harm as long as
    their mean moves downhill; once it does not, shorter steps are needed for further progress.
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
    """gᵀ(w̄ − w̄'), after adding the present iterate to both means; 0 without a finite gradient."""
    w, means, t = context.weights, context.means, context.state.steps
    for name, a in WEIGHTS.items():
        if name not in means:
            means[name] = w.clone()
        means[name].lerp_(w, a / (t + a) if t > 1 else 1.0)
    g = context.gradient
    slope = 0.0 if g is None else float(torch.dot(g, means["recent"] - means["lagging"]))
    return slope if math.isfinite(slope) else 0.0


def noise_limit(context: Context, local: BatchCurvature, scaling: Scaling) -> float:
    """The rate at which a new P² brings as much noise into steps as the present P² and rate; infinite if no limit is needed.

    A better P² also moves along flat directions, where near the optimum there is only noise. Noise is the spread of gᵀP²g
    over slices of the present batch; the pool that P² was built from would underestimate it.
    """
    n, batch = context.state, context.batch
    if not n.step > 0 or n.slope < -CLEAR * n.slope_squares**0.5:
        return math.inf
    if context.source.split and not local.forward_trace.batch_statistics and context.points > 1:
        G = context.source.slice_gradients(batch, min(SLICES, size_of(batch)))
        G = G - G.mean(1, keepdim=True)
    else:
        G = local.gradient()[:, None]
    before, after = (sum(dot(g, P(g)) for g in G.mT) for P in (context.scaling, scaling))
    return n.step * n.factor * before / after if before > 0 and after > 0 else math.inf
