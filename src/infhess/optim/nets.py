"""Self-driving in nets: a rate that follows curvature along the base's own direction, by one product in fifty steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.optim.bases import decay
from infhess.optim.powers import power_of_two
from infhess.optim.report import Seen
from infhess.optim.scaling import identity
from infhess.optim.step_length import largest

if TYPE_CHECKING:
    from infhess.optim.preconditioned import Preconditioned

# Net rule: rate = σ / √(hᵀDh/gᵀDg); looks every so many steps; growth of the rate a step, before it was reached and after.
SIGMA_PLAIN, SIGMA_ADAPTIVE = 1.0, 2.0
EVERY, EARLY, FAST, SLOW = 50, 600, 1.10, 1.03
# Steps after which the base's own scaling is taken to have settled.
SETTLED = 64
# A look that is further off than this, in logarithms, is a batch out of the ordinary and counts as one that is so far off.
OUTLIER = 1.0
START, LONGEST = 1e-3, 0.03


def follow(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen | None:
    """A rate that follows curvature along the base's own direction, by one product in fifty steps."""
    n, notes = opt._numbers, None
    since = n.steps - n.steps_at_look
    early = n.steps <= EARLY and (n.rate > 1.5 * n.rate_at_look or power_of_two(n.steps))
    if not n.rate > 0 or n.steps <= 4 or since >= EVERY or early:
        notes = _look_along(opt, source, batch)
    target = 1 / (math.exp(-n.log_rate) / _sigma(opt) + decay(opt.base, None)) if n.log_rate == n.log_rate else n.rate
    if FAST * n.rate > target and n.steps > SETTLED:
        n.slow = 1.0
    n.rate = min((SLOW if n.slow else FAST) * n.rate, target)
    n.step, n.factor, n.momentum = n.rate, 1.0, 0.0
    return None if notes is None else (source.like, notes)


def _sigma(opt: Preconditioned) -> float:
    return SIGMA_ADAPTIVE if opt._adaptive else SIGMA_PLAIN


def _look_along(opt: Preconditioned, source: BatchSource, batch: Batch) -> tuple[str, ...]:
    n = opt._numbers
    n.steps_at_look = n.steps
    local = source.local(batch)
    scaling = (
        opt._scaling() if n.armed and not opt._adaptive else identity(opt._sizes(), source.like, opt._root_of(local))
    )
    size = float(torch.linalg.vector_norm(opt._w()))
    try:
        value = largest(source, local, scaling, 1).value
        length = float(torch.linalg.vector_norm(scaling(local.gradient())))
    except ValueError as error:
        return (f"a look was skipped: {error}",)
    if not value > 0:
        return ("a look was skipped: no curvature along the gradient",)
    _filtered(opt, -math.log(value))
    if not n.rate > 0:
        n.rate = START * (size or 1.0) / length
        opt._install(scaling, n.rate)
    n.rate_at_look = n.rate
    if size > 0 and opt._adaptive:  # whose steps are of one length
        n.rate, n.limit = min(n.rate, LONGEST * size / length), math.inf
    elif size > 0:
        n.limit = LONGEST * size
    return ()


def _filtered(opt: Preconditioned, seen: float) -> None:
    """A random walk of the logarithm of the rate, seen with noise: Kalman's filter with variances .02 and .2."""
    n = opt._numbers
    if n.log_rate != n.log_rate:
        n.log_rate, n.log_rate_variance = seen, 0.2
        return
    # What is seen first is of a scaling that has just begun: it is forgotten fast.
    n.log_rate_variance += 0.02 * max(1.0, SETTLED / n.steps)
    k = n.log_rate_variance / (n.log_rate_variance + 0.2)
    n.log_rate += k * max(-OUTLIER, min(OUTLIER, seen - n.log_rate))
    n.log_rate_variance *= 1 - k
