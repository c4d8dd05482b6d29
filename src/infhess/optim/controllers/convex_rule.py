"""Convex problems: P² is rebuilt on growing pools of batches, and the step is measured now and then."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from infhess.optim.base_optimizers import decay
from infhess.optim.controllers import nonconvex
from infhess.optim.controllers.context import Context, Decision
from infhess.optim.controllers.controller_state import LONGER, ControllerState
from infhess.optim.controllers.noise import count_noise_dominated, noise_limit
from infhess.optim.controllers.step_length import SMALL, Largest, NothingSeenError, backtracked, largest_curvature
from infhess.preconditioners.build import blocked
from infhess.preconditioners.scaling import Scaling, identity


@dataclass(frozen=True)
class ConvexRule:
    """Constants, chosen on five regression and classification problems; docs/results/convex.md has the measurements."""

    first_pool: int = 96  # data points of the first pool
    data_growth: float = 8.0  # P² is rebuilt when this many times more data has been read
    work: float = 60.0  # example-products of a build, per √T with T data points read
    smallest_pool: int = 32
    largest_pool: int = 512
    spike: float = 10.0  # a gradient this many times longer than at any probe triggers a probe
    remembered: int = 8  # probes in the running mean of the curvature
    first_probes: int = 4  # probes after a build that set the reference for drift; one alone is off by a factor of ten
    held: int = 2  # probes after a build at which the step length is always checked by backtracking
    raised: float = 2.0  # later it is checked if curvature on the batch is below the mean by this factor
    many: int = 128  # batches above this many points are probed less often and with fewer iterations
    at_build: tuple[int, int] = (2, 6)  # Lanczos iterations right after a build: large batches, small batches
    later: tuple[int, int] = (1, 4)  # the same at later probes
    bold: float = 1.4  # the step in units of 1/λ, around SGD; with 2 some runs diverge
    careful: float = 0.9  # the same for batches below 32 points, and around Adam
    noise_scale: float = 50.0  # this many noise-dominated steps divide the step by √2
    momentum: float = 0.5
    momentum_half_life: float = 500.0  # momentum falls as 1/(1 + t/500)


RULE = ConvexRule()


def decide(c: Context) -> Decision:
    """Handle one batch: build P², probe, or neither; then set the step. A batch without information changes nothing."""
    n = c.state
    try:
        done = _estimate(c)
    except ValueError as error:
        if not (n.active or isinstance(error, NothingSeenError)):
            raise
        c.pool.clear()
        rate = math.nan if n.step > 0 else 0.0  # no step is made before a learning rate is known
        note = f"nothing was learnt from this batch: {error}"
        return Decision(rate, n.limit, n.momentum, None, c.source.like, (note,))
    if n.nonconvex:
        c.pool.clear()
        then = nonconvex.decide(c)
        return replace(then, notes=(*done.notes, *then.notes))
    if _build_is_due(c):
        c.pool.append(c.batch)
    return _with_step(c, done)


def _estimate(c: Context) -> Decision:
    """Build P², probe curvature, or do nothing."""
    n, many = c.state, c.points > RULE.many
    if c.pool and sum(map(c.source.points_of, c.pool)) >= _pool_size(c):
        return _build(c)
    if not n.step > 0:
        plain = identity([c.source.size], c.source.like, c.root(c.source.local(c.batch).gradient()))
        found = _probe(c, plain, RULE.at_build[not many])
        note = "the step is that of the plain gradient until the first pool is read"
        return Decision(scaling=plain, values=c.source.like, notes=(note, *c.scaled_note(found.gradient)))
    few = n.probes * c.points < SMALL  # each of the first small batches is probed before a step is made on it
    rare = is_power(4 if many else 2, n.steps - n.steps_at_build)
    if few or rare or not c.gradient_length <= RULE.spike * n.gradient_scale:
        found = _probe(c, c.scaling, RULE.later[not many])
        return Decision(values=c.source.like, notes=c.scaled_note(found.gradient))
    return Decision()


def _pool_size(c: Context) -> int:
    read = c.state.read
    if not c.state.built_at > 0:
        return RULE.first_pool
    return int(min(RULE.largest_pool, max(RULE.smallest_pool, RULE.work * read**0.5 / _directions(read, c.rank))))


def _directions(read: float, rank: int) -> int:
    """Directions m and pool size share the work: m · pool = 60 √T with pool ≈ 4 m."""
    return max(1, min(rank, int((RULE.work * read**0.5 / 4) ** 0.5)))


def _build_is_due(c: Context) -> bool:
    n = c.state
    if c.pool or not n.built_at > 0:
        return True
    left = n.probes > RULE.first_probes and not 1 / 3 < n.curvature / n.first_curvature < 3
    return left or n.read >= RULE.data_growth * n.built_at


def _build(c: Context) -> Decision:
    """Build P² from the pool; measure its step on the present batch, which is not in the pool."""
    n, pool, source = c.state, list(c.pool), c.source
    c.pool.clear()  # whatever comes of it: the next estimate has batches of its own
    steps, first = min(_directions(n.read, c.rank), source.size), not n.built_at > 0
    known = None if first or c.adaptive else c.scaling.blocks[0].U
    found = blocked(source, pool, _pool_size(c), steps, c.root(source.local(c.batch).gradient()), known)
    if found.negative:
        n.nonconvex = 1.0
        note = "negative curvature was seen: from here on the learning rate alone is followed"
        return Decision(values=found.values, notes=(note,))
    local = source.local(c.batch)
    # If this fails, P² and the step stay as they were; the pool is gathered anew.
    value = largest_curvature(source, local, found.scaling, RULE.at_build[c.points <= RULE.many])
    n.rate_limit = n.rate_limit if first else noise_limit(c, local, found.scaling) * _noise_brake(n)
    n.built_at, n.steps_at_build, n.probes, n.squares, n.longest = n.read, n.steps, 0, 0.0, 0.0
    _note(c, value, backtracked(source, c.batch, local, found.scaling, 1 / value.value))
    return Decision(scaling=found.scaling, values=found.values)


def _probe(c: Context, scaling: Scaling, iterations: int) -> Largest:
    """λmax(P²B) on a batch that was not used to build P²."""
    local = c.source.local(c.batch)
    found = largest_curvature(c.source, local, scaling, iterations)
    rate = 1 / found.value
    n = c.state
    trusted = n.probes >= RULE.held and found.value * RULE.raised > n.curvature
    _note(c, found, rate if trusted or found.negative else backtracked(c.source, c.batch, local, scaling, rate))
    return found


def _note(c: Context, found: Largest, rate: float) -> None:
    n, value = c.state, 1 / rate
    gradient = c.gradient_length if 0 < c.gradient_length < math.inf else found.gradient
    n.nonconvex = max(n.nonconvex, float(found.negative))
    n.probes += 1
    share = 1 / min(n.probes, RULE.remembered)
    n.curvature = value if n.probes == 1 else n.curvature + share * (value - n.curvature)
    n.squares = value**2 if n.probes == 1 else n.squares + share * (value**2 - n.squares)
    n.first_curvature = n.curvature if n.probes <= RULE.first_probes else n.first_curvature
    n.longest = max(n.longest, found.length)
    n.gradient_scale = gradient if n.probes == 1 else max(n.gradient_scale, gradient)


def _with_step(c: Context, done: Decision) -> Decision:
    """η = 1.4 / λ, smaller after few probes and once noise dominates; with momentum unless batches are small.

    A build of P² does not raise the noise of steps unless the mean of the iterates clearly descends, and nothing later does:
    averaging more iterates reduces noise, but where the loss is not quadratic long steps move the mean itself. In mean square,
    SGD on single points is stable up to 2 E[λ]/E[λ²], which for small batches is far below 2/E[λ].
    """
    n, few = c.state, c.points < SMALL
    count_noise_dominated(c)
    value = n.squares / n.curvature if few else n.curvature
    added = decay(c.base, (done.scaling or c.scaling).root if c.adaptive else None)
    bold = RULE.careful if few or c.adaptive else RULE.bold
    rate = min(bold / (value * (1 + 0.5 / max(n.probes, 1)) + added), n.rate_limit) / _noise_brake(n)
    momentum = 0.0 if few else RULE.momentum / (1 + n.steps / RULE.momentum_half_life)
    return Decision(rate, LONGER * rate * n.longest, momentum, done.scaling, done.values, done.notes)


def _noise_brake(n: ControllerState) -> float:
    """Steps shrink as 1/√(1 + n/50) with n noise-dominated steps; if n counted all steps, logistic problems would stall."""
    return math.sqrt(1 + n.noise_dominated / RULE.noise_scale)


def is_power(base: int, steps: float) -> bool:
    """Whether `steps` is one of 1, 2, 4, 8, … for base 2, or 1, 4, 16, … for base 4; False for NaN."""
    whole = int(steps) if steps == steps else 0
    return whole > 0 and whole & (whole - 1) == 0 and (base == 2 or whole.bit_length() % 2 == 1)
