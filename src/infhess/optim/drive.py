"""Self-driving: what `observe` does with each batch that training reads anyway."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch, size_of
from infhess.optim.bases import decay
from infhess.optim.estimate import pooled
from infhess.optim.scaling import Scaling, identity
from infhess.optim.step_length import largest

if TYPE_CHECKING:
    from infhess.optim.preconditioned import Preconditioned

# Convex rule (shared problems of docs: regression and classification): the first build and the growth of data between builds.
FIRST_POOL, GROWTH_OF_DATA = 128, 8.0
# Example-products of a build for √T data points read, and bounds on its pool.
WORK, SMALLEST_POOL, LARGEST_POOL = 181.0, 32, 1024
# Net rule: rate = σ / √(hᵀDh/gᵀDg); looks every so many steps; growth of the rate a step, before it was reached and after.
SIGMA_PLAIN, SIGMA_ADAPTIVE = 1.0, 2.0
EVERY, EARLY, FAST, SLOW = 50, 600, 1.10, 1.03
# Steps after which the base's own scaling is taken to have settled.
SETTLED = 64
# A look that is further off than this, in logarithms, is a batch out of the ordinary and counts as one that is so far off.
OUTLIER = 1.0
START, LONGEST = 1e-3, 0.03
# More parameters than this are a net: its curvature is followed, not inferred.
LARGE = 100_000


Seen = tuple[Tensor, tuple[str, ...]]


def observe(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen | None:
    """One batch; eigenvalues and notes if something was estimated."""
    numbers = opt._numbers
    if opt.blocks == "layer" or source.size > LARGE:
        numbers.nonconvex = 1.0
    numbers.read += size_of(batch)
    numbers.steps += 1
    return (follow if numbers.nonconvex else converge)(opt, source, batch)


# ---- convex problems


def converge(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen | None:
    """Builds of P² on growing pools, and a step that is measured now and then on the batch at hand."""
    n = opt._numbers
    try:
        done = _converge(opt, source, batch)
    except ValueError as error:
        opt._pool.clear()
        if not n.armed:
            raise
        return source.like, (f"nothing was learnt from this batch: {error}",)
    if n.nonconvex:
        opt._pool.clear()
        return follow(opt, source, batch)
    if _build_is_due(opt):
        opt._pool.append(batch)
    _set_step(opt)
    return done


def _converge(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen | None:
    n = opt._numbers
    if opt._pool and sum(map(size_of, opt._pool)) >= _pool_size(opt, batch):
        return _build(opt, source, batch)
    if not n.armed:
        plain = identity(opt._sizes(), source.like, opt._root_of(source.local(batch)))
        _look(opt, source, batch, plain, 6)
        opt._install(plain, math.nan)
        return source.like, ("the step is that of the plain gradient until the first pool is read",)
    if _power_of_two(n.steps - n.steps_at_build):
        _look(opt, source, batch, opt._scaling(), 1 if size_of(batch) > 128 else 4)
        return source.like, ()
    return None


def _pool_size(opt: Preconditioned, batch: Batch) -> int:
    read = opt._numbers.read
    if not opt._numbers.built_at > 0:
        return max(FIRST_POOL, size_of(batch))
    return int(min(LARGEST_POOL, max(SMALLEST_POOL, WORK * read**0.5 / _directions(read, opt.rank))))


def _directions(read: float, rank: int) -> int:
    """Directions and pool share the work: m · pool = 181 √T with pool ≈ 4 m."""
    return max(1, min(rank, int((WORK * read**0.5 / 4) ** 0.5)))


def _build_is_due(opt: Preconditioned) -> bool:
    n = opt._numbers
    if opt._pool or not n.built_at > 0:
        return True
    left = n.looks > 1 and not 1 / 3 < n.curvature / n.first_curvature < 3
    return left or n.read >= GROWTH_OF_DATA * n.built_at


def _build(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen:
    """P² from the pool, its step from the present batch, which is not in the pool."""
    n, pool = opt._numbers, list(opt._pool)
    opt._pool.clear()
    steps = min(_directions(n.read, opt.rank), source.size)
    known = opt._scaling().blocks[0].U if n.built_at > 0 and not opt._adaptive else None
    found = pooled(source, pool, steps, steps, opt._root_of(source.local(batch)), known)
    if found.negative:
        n.nonconvex = 1.0
        return found.values, ("negative curvature was seen: from here on the rate alone is followed",)
    n.built_at, n.steps_at_build, n.looks = n.read, n.steps, 0
    _look(opt, source, batch, found.scaling, 6)
    opt._install(found.scaling, math.nan)
    return found.values, ()


def _look(opt: Preconditioned, source: BatchSource, batch: Batch, scaling: Scaling, iterations: int) -> None:
    """λmax(P²B) on a batch that P² does not come from."""
    n = opt._numbers
    value, negative = largest(source, source.local(batch), scaling, iterations)
    n.nonconvex = max(n.nonconvex, float(negative))
    n.looks += 1
    n.curvature = value if n.looks == 1 else n.curvature + (value - n.curvature) / min(n.looks, 8)
    n.first_curvature = value if n.looks == 1 else n.first_curvature


def _set_step(opt: Preconditioned) -> None:
    n = opt._numbers
    cautious = n.curvature * (1 + 0.5 / max(n.looks, 1)) + decay(
        opt.base, opt._scaling().root if opt._adaptive else None
    )
    n.step = 0.9 / cautious / n.factor / (1 + n.steps / 1000) ** 0.5
    n.momentum = 0.5 / (1 + n.steps / 500)


def _power_of_two(steps: float) -> bool:
    whole = int(steps) if steps == steps else 0
    return whole > 0 and whole & (whole - 1) == 0


# ---- nets


def follow(opt: Preconditioned, source: BatchSource, batch: Batch) -> Seen | None:
    """A rate that follows curvature along the base's own direction, by one product in fifty steps."""
    n, notes = opt._numbers, None
    since = n.steps - n.steps_at_look
    early = n.steps <= EARLY and (n.rate > 1.5 * n.rate_at_look or _power_of_two(n.steps))
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
    n.limit = LONGEST * size if size > 0 else math.inf
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
