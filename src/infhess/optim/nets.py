"""Self-driving in nets: a rate that follows curvature along the base's own direction, by one product in eighty steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.flat import length, real
from infhess.curvature.local import DoubleBackwardError
from infhess.optim.bases import decay, direction, inertia
from infhess.optim.numbers import Numbers
from infhess.optim.ranks import agreed
from infhess.optim.rate import DRIFT, EVERY, FAST, FIRST, MEMORY, filtered
from infhess.optim.report import Seen
from infhess.optim.scaling import Scaling, identity
from infhess.optim.step_length import NothingSeenError, dot, largest

if TYPE_CHECKING:
    from infhess.optim.preconditioned import Preconditioned

# The rate in units of √(gᵀDg/hᵀDh): gradient descent is stable up to twice inverse curvature. A rate is of all that a gradient
# moves w by in the end; with heavy ball, stable up to (1 + β)/(1 − β) times that, 1 + β times that was measured to do.
SIGMA = 2.0
# Growth of the rate a step once what curvature allows for was reached; steps after which the base's scaling has settled.
SLOW, SETTLED = 1.03, 64
# The first rate moves w by this share.
START = 0.003
# Step t is no longer than this share of |w| over √(t + SETTLED): noise turns w no faster than it has been trained for.
TURNED_PLAIN, TURNED_ADAPTIVE = 0.7, 0.3
# No more than this share of |w| is to go in a step: a net on its plateau, where a penalty alone pulls, would shrink to nothing.
SHRUNK = 0.002


def follow(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen | None:
    """A rate that follows curvature along the base's own direction, by one product in eighty steps."""
    n, size = opt._numbers, length([[real(p.detach()) for p in opt._params() if p.requires_grad]])
    _measure_shrinking(n, size)
    before = n.rate
    notes = _look(opt, source, batch, size) if _due(n) else None
    if notes is not None and not n.rate > 0:
        _wait(opt, source)
        return source.like, notes
    allowed = 1 / (math.exp(-n.log_rate) / _sigma(opt) + decay(opt.base, None))
    if FAST * n.rate > allowed and n.steps > SETTLED:
        n.slow = 1.0
    n.rate = wanted = min((SLOW if n.slow else FAST) * n.rate, allowed)
    if 0 < size < math.inf:
        n.rate = _bounded(n, size, opt._adaptive)
    n.step, n.factor, n.momentum = n.rate, 1.0, 0.0
    return None if notes is None else (source.like, (*notes, *_words(opt, before, wanted, allowed)))


def _words(opt: Preconditioned, before: float, wanted: float, allowed: float) -> Iterator[str]:
    """What braked, and why."""
    n, share = opt._numbers, _share(opt._numbers, opt._adaptive)
    if allowed < before:
        yield f"curvature along the steps has grown: it allows for a rate of {allowed:.3g}, which was {before:.3g}"
    if n.rate < wanted and opt._adaptive:
        yield f"steps are kept to {share:.1%} of |w| or so by a rate of {n.rate:.3g}; curvature allows {allowed:.3g}"
    elif n.rate < wanted:
        yield (
            f"w shrinks: the rate is held at {n.rate:.3g}, where curvature allows for {allowed:.3g}, so that no step takes "
            f"more than {SHRUNK:.1%} off |w|"
        )
    moves = n.rate * n.longest
    if moves > n.limit:
        yield f"this step is kept to {share:.1%} of |w|; at a rate of {n.rate:.3g} it would be {share * moves / n.limit:.1%}"


def _due(n: Numbers) -> bool:
    """Each of the first steps, each time their number has doubled, and every eighty; an `update` begins this anew."""
    began = 0.0 if math.isnan(n.steps_at_build) else n.steps_at_build
    doubled = n.steps - n.steps_at_look >= min(EVERY, n.steps_at_look - began)
    return not n.rate > 0 or n.steps - began <= FIRST or doubled


def _sigma(opt: Preconditioned) -> float:
    heavy = min(0.0 if group.get("nesterov") else inertia(group).decay for group in opt.param_groups)
    return SIGMA if opt._adaptive else SIGMA * (1 + heavy)


def _share(n: Numbers, adaptive: bool) -> float:
    """The share of |w| that bounds the coming step."""
    return (TURNED_ADAPTIVE if adaptive else TURNED_PLAIN) / math.sqrt(n.steps + SETTLED)


def _measure_shrinking(n: Numbers, size: float) -> None:
    """The share of |w| that a step takes off it for each unit of the rate: a moving average."""
    if n.rate > 0 and 0 < n.size < math.inf and 0 < size < math.inf:
        n.shrinking += (1 - MEMORY) * (math.log(n.size / size) / n.rate - n.shrinking)
    n.size = size


def _bounded(n: Numbers, size: float, adaptive: bool) -> float:
    """The rate, or less of it, so that w neither jumps nor shrinks away."""
    share = _share(n, adaptive) * size
    if adaptive:  # its steps are of about one length, also where a penalty alone pulls
        n.limit = math.inf
        return min(n.rate, share / n.longest) if n.longest > 0 else n.rate
    n.limit = share
    return min(n.rate, SHRUNK / n.shrinking) if n.shrinking > 0 else n.rate


def _wait(opt: Preconditioned, source: BatchSource) -> None:
    """No rate is known yet: the step that an update measured stays, and without one none is made, whatever the base's rate."""
    if not opt._numbers.armed:
        opt._install(_standing(opt, source), 0.0)


def _standing(opt: Preconditioned, source: BatchSource) -> Scaling:
    """P² as an `update` left it around sgd, else the base as it is."""
    if opt._numbers.armed and not opt._adaptive:
        return opt._scaling()
    return identity(opt._sizes(), source.like, source.like.new_ones(source.size) if opt._adaptive else None)


def _look(opt: Preconditioned, source: BatchSource, batch: Batch, size: float) -> tuple[str, ...]:
    """One product. A look that fails changes nothing; the first one has to tell something, or that there is nothing to see.

    Processes that train one model together all look at once, each at its own batch, and agree on what was seen.
    """
    n, failure, scaling = opt._numbers, None, None
    n.steps_at_look, seen, moves = n.steps, math.nan, math.nan
    try:
        scaling, seen, moves = _along(opt, source, batch)
    except ValueError as error:
        failure = error
    bad = failure is not None and not isinstance(failure, NothingSeenError)
    seen, moves, bad_somewhere = agreed([seen, moves, float(bad)], source.like.device)
    if not math.isnan(seen):
        _see(n, seen)
        n.longest = moves
        if not n.rate > 0:
            n.rate = START * (size or 1.0) / moves
            opt._install(scaling or _standing(opt, source), n.rate)
    hopeless = math.isnan(n.log_rate) and bad_somewhere > 0
    if hopeless or isinstance(failure, DoubleBackwardError):
        raise failure or ValueError("the first look at curvature failed in another process that trains this model")
    return () if failure is None else (f"a look was skipped: {failure}",)


def _along(opt: Preconditioned, source: BatchSource, batch: Batch) -> tuple[Scaling, float, float]:
    """The scaling of the coming step, the logarithm of √(gᵀDg/hᵀDh), and the length of the base's direction."""
    local = source.local(batch)
    scaling = replace(_standing(opt, source), root=opt._root_of(local))
    value = largest(source, local, scaling, 1).value
    move = scaling(direction(opt.base, local.gradient()))
    moves = math.sqrt(dot(move, move))
    if not 0 < moves < math.inf:
        raise NothingSeenError(f"the step of the base is of length {moves:g}")
    return scaling, -math.log(value), moves


def _see(n: Numbers, seen: float) -> None:
    """One look. What is seen first is of a scaling that has just begun: it is forgotten fast."""
    drift = DRIFT * max(1.0, SETTLED / n.steps)
    n.log_rate, n.log_rate_variance = filtered(n.log_rate, n.log_rate_variance, seen, drift)
