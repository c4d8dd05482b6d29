"""Nets: the learning rate follows curvature along the base's own direction, with one probe every eighty steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from infhess.curvature.batch_curvature import DoubleBackwardError
from infhess.curvature.flat import Flat, length, real
from infhess.optim.base_optimizers import decay, direction, momentum_of
from infhess.optim.controllers.context import SCALED, Context, Decision
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.controllers.step_length import NothingSeenError, check_curvature, check_gradient
from infhess.optim.preconditioning.directions import numbers
from infhess.optim.rate.kalman import filtered
from infhess.optim.rate.probe import Reading, dot
from infhess.optim.rate.settings import FILTER
from infhess.optim.rate.settings import NONCONVEX as RULE
from infhess.preconditioners.scaling import Scaling, identity


def decide(c: Context) -> Decision:
    """Set the learning rate from curvature along the base's own direction; probe about every eighty steps."""
    n, size = c.state, length([[real(p.detach()) for p in c.params if p.requires_grad]])
    if n.rate > 0 and 0 < n.size < math.inf and 0 < size < math.inf:  # the share that a step took off |w|, per rate
        n.shrinking += (1 - RULE.memory) * (math.log(n.size / size) / n.rate - n.shrinking)
    n.size = size
    before, scaling, notes = n.rate, None, None
    if due(n, n.steps):
        scaling, notes = _probe(c, size)
        if not n.rate > 0:  # nothing known yet: keep the step of an update, or make no step if there was none
            waits = math.nan if n.active and n.step > 0 else 0.0
            return Decision(waits, n.limit, n.momentum, None, c.like, notes)
    allowed = 1 / (math.exp(-n.log_rate) / _sigma(c) + decay(c.base, None))
    if RULE.growth * n.rate > allowed and n.steps > RULE.settled:
        n.slow = 1.0
    n.rate = wanted = min((RULE.late_growth if n.slow else RULE.growth) * n.rate, allowed)
    limit = math.inf
    if 0 < size < math.inf:
        n.rate, limit = _bounded(c, size)
    n.factor = 1.0
    if notes is None:
        return Decision(n.rate, limit)
    notes = (*notes, *_diagnostics(c, before, wanted, allowed, limit))
    return Decision(n.rate, limit, 0.0, scaling, c.like, notes)


def _diagnostics(c: Context, before: float, wanted: float, allowed: float, limit: float) -> Iterator[str]:
    """Notes on what reduced the step, and why."""
    n, share = c.state, _share(c)
    if allowed < before:
        yield f"curvature along the steps has grown: it allows for a rate of {allowed:.3g}, which was {before:.3g}"
    if n.rate < wanted and c.adaptive:
        yield f"steps are kept to {share:.1%} of |w| or so by a rate of {n.rate:.3g}; curvature allows {allowed:.3g}"
    elif n.rate < wanted:
        yield (
            f"w shrinks: the rate is held at {n.rate:.3g}, where curvature allows for {allowed:.3g}, so that no step takes "
            f"more than {RULE.shrink:.1%} off |w|"
        )
    moves = n.rate * n.longest
    if moves > limit:
        yield f"this step is kept to {share:.1%} of |w|; at a rate of {n.rate:.3g} it would be {share * moves / limit:.1%}"


def due(n: ControllerState, steps: float) -> bool:
    """Probe at each of the first steps, each time the step count doubles, and every eighty; an `update` restarts this."""
    began = 0.0 if math.isnan(n.steps_at_build) else n.steps_at_build
    doubled = steps - n.steps_at_probe >= min(RULE.every, n.steps_at_probe - began)
    return not n.rate > 0 or steps - began <= RULE.first_probes or doubled


def _sigma(c: Context) -> float:
    """Heavy ball is stable up to (1 + β)/(1 − β) times the inverse curvature; in experiments a factor of 1 + β worked."""
    if c.adaptive:
        return RULE.sigma
    heavy = min(0.0 if group.get("nesterov") else momentum_of(group).decay for group in c.base.param_groups)
    return RULE.sigma * (1 + heavy)


def _share(c: Context) -> float:
    """The longest coming step as a share of |w|."""
    return (RULE.adaptive_turn if c.adaptive else RULE.turn) / math.sqrt(c.state.steps + RULE.settled)


def _bounded(c: Context, size: float) -> tuple[float, float]:
    """The rate, reduced if necessary, and the longest step, so that w neither jumps nor shrinks away."""
    n, share = c.state, _share(c) * size
    if c.adaptive:  # its steps have about the same length even if only a penalty acts
        return (min(n.rate, share / n.longest) if n.longest > 0 else n.rate), share
    return (min(n.rate, RULE.shrink / n.shrinking) if n.shrinking > 0 else n.rate), share


def _probe(c: Context, size: float) -> tuple[Scaling | None, tuple[str, ...]]:
    """One Hessian-vector product. A failing probe changes nothing; the first must succeed, or find that there is no curvature.

    All processes of distributed training probe at once, each on its own batch, and h is the mean over them.
    """
    n = c.state
    n.steps_at_probe = n.steps
    try:
        scaling, seen = _along(c)
    except ValueError as error:
        bad = isinstance(error, DoubleBackwardError) or not (n.rate > 0 or n.step > 0)
        if bad and not isinstance(error, NothingSeenError):
            raise
        return None, (f"a curvature probe was skipped: {error}",)
    # The first readings use a scaling that has just started, so they are forgotten fast.
    drift = FILTER.drift * max(1.0, RULE.settled / n.steps)
    n.largest_gradient, log_ratio = max(n.largest_gradient, seen.gradient), seen.log_ratio
    if seen.gradient < RULE.evidence * n.largest_gradient:
        log_ratio = min(log_ratio, n.log_rate)
    n.log_rate, n.log_rate_variance = filtered(n.log_rate, n.log_rate_variance, log_ratio, drift)
    n.longest, notes = seen.direction, c.scaled_note(seen.gradient)
    if n.rate > 0:
        return None, notes
    n.rate = RULE.first_move * (size or 1.0) / n.longest
    return (scaling if n.directions else replace(scaling, root=None)), notes


def _along(c: Context) -> tuple[Scaling, Reading]:
    """Probe along the base's next move with the gradient of the step; h is scaled in the same way as g.

    Returns P², or the base's scaling at the coming step; and |g| of this batch alone, the length of the move, and the ratio.
    """
    probe, flat = c.probe, Flat(c.params)  # a training pass knows only the parameters that train now
    own = flat.pack(probe.own())
    g = c.gradient_beside(own)
    # Around SGD, P² as the last update left it; otherwise the base alone.
    standing = c.scaling if c.state.directions and not c.adaptive else identity([sum(numbers(c.params))], c.like)
    scaling = replace(standing, factor=1.0, root=c.root(g))
    p = scaling(g)
    along = dot(g, p)
    check_gradient(along)
    products, _ = probe.measure(flat.unpack(p))
    factor = probe.factor([g], [own])
    if not (c.adaptive or (probe.trained and factor * SCALED < 1)):
        # Around a base that does not scale gradients, a clipped step should be shorter: only a GradScaler's factor is undone.
        factor = 1.0
    across = probe.across(products, lambda x, y: dot(flat.pack(x), scaling(flat.pack(y)))) * factor**2
    check_curvature(across)
    move = scaling(direction(c.base, g))
    moves = math.sqrt(dot(move, move))
    if not 0 < moves < math.inf:
        raise NothingSeenError(f"the step of the base is of length {moves:g}")
    return scaling, Reading.of(float(torch.linalg.vector_norm(own)), moves, along, across)
