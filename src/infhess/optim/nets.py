"""Self-driving in nets: a rate that follows curvature along the base's own direction, by one product in eighty steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.optim.bases import decay
from infhess.optim.rate import DRIFT, filtered
from infhess.optim.report import Seen
from infhess.optim.scaling import identity
from infhess.optim.step_length import largest

if TYPE_CHECKING:
    from infhess.optim.preconditioned import Preconditioned

# Net rule: rate = σ / √(hᵀDh/gᵀDg); looks every so many steps; growth of the rate a step, before it was reached and after.
SIGMA_PLAIN, SIGMA_ADAPTIVE = 2.0, 2.0
EVERY, EARLY, GROWN, FAST, SLOW = 80, 600, 2.0, 1.10, 1.03
# Steps after which the base's own scaling is taken to have settled.
SETTLED = 64
START, LONGEST = 1e-3, 0.03


def follow(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen | None:
    """A rate that follows curvature along the base's own direction, by one product in eighty steps."""
    n, notes = opt._numbers, None
    since = n.steps - n.steps_at_look
    early = n.steps <= EARLY and n.rate > GROWN * n.rate_at_look
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
    drift = DRIFT * max(
        1.0, SETTLED / n.steps
    )  # what is seen first is of a scaling that has just begun: it is forgotten fast
    n.log_rate, n.log_rate_variance = filtered(n.log_rate, n.log_rate_variance, -math.log(value), drift)
    if not n.rate > 0:
        n.rate = START * (size or 1.0) / length
        opt._install(scaling, n.rate)
    n.rate_at_look = n.rate
    if size > 0 and opt._adaptive:  # whose steps are of one length
        n.rate, n.limit = min(n.rate, LONGEST * size / length), math.inf
    elif size > 0:
        n.limit = LONGEST * size
    return ()
