"""Self-driving in nets: a rate that follows curvature along the base's own direction, by one product in eighty steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.flat import length, real
from infhess.curvature.local import DoubleBackwardError
from infhess.optim.bases import decay, direction
from infhess.optim.numbers import Numbers
from infhess.optim.rate import DRIFT, EARLY, EVERY, FAST, FIRST, GROWN, MEMORY, filtered
from infhess.optim.report import Seen
from infhess.optim.scaling import identity
from infhess.optim.step_length import NothingSeenError, dot, largest

if TYPE_CHECKING:
    from infhess.optim.preconditioned import Preconditioned

# The rate in units of √(gᵀDg/hᵀDh), around sgd and around bases that scale gradients by themselves.
SIGMA_PLAIN, SIGMA_ADAPTIVE = 1.5, 1.0
# Growth of the rate a step once what curvature allows for was reached; steps after which the base's scaling has settled.
SLOW, SETTLED = 1.03, 64
# The first rate moves w by this share. No step is longer than such a share of |w|.
START, LONGEST_PLAIN, LONGEST_ADAPTIVE = 0.01, 0.06, 0.03
# No more than this share of |w| is to go in a step: a net on its plateau, where a penalty alone pulls, would shrink to nothing.
SHRUNK = 0.01


def follow(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen | None:
    """A rate that follows curvature along the base's own direction, by one product in eighty steps."""
    n, size = opt._numbers, length([[real(p.detach()) for p in opt._params() if p.requires_grad]])
    _measure_shrinking(n, size)
    before = n.rate
    notes = _look_along(opt, source, batch, size) if _due(n) else None
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
    return None if notes is None else (source.like, (*notes, *_words(n.rate, before, wanted, allowed, opt._adaptive)))


def _words(rate: float, before: float, wanted: float, allowed: float, adaptive: bool) -> Iterator[str]:
    """What braked, and why."""
    if allowed < before:
        yield f"curvature along the steps has grown: it allows for a rate of {allowed:.3g}, which was {before:.3g}"
    if rate < wanted and adaptive:
        yield f"steps are kept to {LONGEST_ADAPTIVE:.0%} of |w| or so by a rate of {rate:.3g}; curvature allows {allowed:.3g}"
    elif rate < wanted:
        yield (
            f"w shrinks: the rate is held at {rate:.3g}, where curvature allows for {allowed:.3g}, so that no step takes more "
            f"than {SHRUNK:.0%} off |w|"
        )


def _due(n: Numbers) -> bool:
    grown = n.steps <= EARLY and n.rate > GROWN * n.rate_at_look
    return not n.rate > 0 or n.steps <= FIRST or n.steps - n.steps_at_look >= EVERY or grown


def _sigma(opt: Preconditioned) -> float:
    return SIGMA_ADAPTIVE if opt._adaptive else SIGMA_PLAIN


def _measure_shrinking(n: Numbers, size: float) -> None:
    """The share of |w| that a step takes off it for each unit of the rate: a moving average."""
    if n.rate > 0 and 0 < n.size < math.inf and 0 < size < math.inf:
        n.shrinking += (1 - MEMORY) * (math.log(n.size / size) / n.rate - n.shrinking)
    n.size = size


def _bounded(n: Numbers, size: float, adaptive: bool) -> float:
    """The rate, or less of it, so that w neither jumps nor shrinks away."""
    if adaptive:  # its steps are of about one length, also where a penalty alone pulls
        n.limit = math.inf
        return min(n.rate, LONGEST_ADAPTIVE * size / n.longest) if n.longest > 0 else n.rate
    n.limit = LONGEST_PLAIN * size
    return min(n.rate, SHRUNK / n.shrinking) if n.shrinking > 0 else n.rate


def _wait(opt: Preconditioned, source: BatchSource) -> None:
    """No rate is known yet: the step that an update measured stays, and without one none is made, whatever the base's rate."""
    if not opt._numbers.armed:
        root = source.like.new_ones(source.size) if opt._adaptive else None
        opt._install(identity(opt._sizes(), source.like, root), 0.0)


def _look_along(opt: Preconditioned, source: BatchSource, batch: Batch, size: float) -> tuple[str, ...]:
    """One product. A look that fails changes nothing; the first one has to tell something, or that there is nothing to see."""
    n = opt._numbers
    n.steps_at_look = n.steps
    try:
        local = source.local(batch)
        fresh = opt._adaptive or not n.armed
        scaling = identity(opt._sizes(), source.like, opt._root_of(local)) if fresh else opt._scaling()
        value = largest(source, local, scaling, 1).value
        move = scaling(direction(opt.base, local.gradient()))
    except NothingSeenError as error:
        return (f"a look was skipped: {error}",)
    except DoubleBackwardError:
        raise
    except ValueError as error:
        if math.isnan(n.log_rate):
            raise
        return (f"a look was skipped: {error}",)
    moves = dot(move, move) ** 0.5
    if not 0 < moves < math.inf:
        return (f"a look was skipped: the step of the base is of length {moves:g}",)
    _see(n, -math.log(value))
    n.longest = moves
    if not n.rate > 0:
        n.rate = START * (size or 1.0) / moves
        opt._install(scaling, n.rate)
    n.rate_at_look = n.rate
    return ()


def _see(n: Numbers, seen: float) -> None:
    """One look. What is seen first is of a scaling that has just begun: it is forgotten fast."""
    drift = DRIFT * max(1.0, SETTLED / n.steps)
    n.log_rate, n.log_rate_variance = filtered(n.log_rate, n.log_rate_variance, seen, drift)
