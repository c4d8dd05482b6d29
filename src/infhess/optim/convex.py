"""Self-driving on convex problems: builds of P² on growing pools, and a step that is measured now and then."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, size_of
from infhess.optim.bases import decay
from infhess.optim.estimate import blocked
from infhess.optim.nets import follow
from infhess.optim.noise import wear
from infhess.optim.powers import power_of_four, power_of_two
from infhess.optim.report import Seen
from infhess.optim.scaling import Scaling, identity
from infhess.optim.step_length import SMALL, Largest, NothingSeenError, largest, that_holds

if TYPE_CHECKING:
    from infhess.optim.preconditioned import Preconditioned

# The first build and the growth of data between builds; from regression and classification, as the constants below.
FIRST_POOL, GROWTH_OF_DATA = 96, 8.0
# Example-products of a build for √T data points read, and bounds on its pool.
WORK, SMALLEST_POOL, LARGEST_POOL = 60.0, 32, 512
# A step is not to be longer than so many times the longest that was seen at a look, and a gradient that is so many times
# longer than at any look calls for another one.
LONGER, SPIKE = 3.0, 10.0
# Looks that the mean of the curvature goes back to, and those after a build at which it is seen whether the step holds where
# it leads.
MEMORY, HELD = 8, 2
# Lanczos iterations of a look after a build and of later ones; on batches of so many points or fewer there are more of them.
AT_BUILD, LATER, FEW, MORE = 2, 1, 128, (6, 4)
# The step in units of 1/λ, around sgd on batches of 32 points or more and elsewhere; it falls as 1/√(1 + worn/50) with the
# steps in which the mean of iterates did not descend. With 2/λ some runs diverge; with a fall by the clock, of 1/√t, logistic
# problems stall.
BOLD, CAREFUL, WORN, FALL = 1.4, 0.9, 50.0, 0.5


def converge(opt: Preconditioned, source: Hessian, batch: Batch) -> Seen | None:
    """One batch: a build, a look, or nothing; and the step for it."""
    n = opt._numbers
    try:
        done = _converge(opt, source, batch)
    except ValueError as error:
        if not (n.armed or isinstance(error, NothingSeenError)):
            raise
        opt._pool.clear()
        return source.like, (f"nothing was learnt from this batch: {error}",)
    if n.nonconvex:
        opt._pool.clear()
        return follow(opt, source, batch)
    if _build_is_due(opt):
        opt._pool.append(batch)
    _set_step(opt, size_of(batch))
    return done


def _converge(opt: Preconditioned, source: Hessian, batch: Batch) -> Seen | None:
    n = opt._numbers
    if opt._pool and sum(map(size_of, opt._pool)) >= _pool_size(opt, batch):
        return _build(opt, source, batch)
    if not n.armed:
        plain = identity(opt._sizes(), source.like, opt._root_of(source.local(batch)))
        _look(opt, source, batch, plain, AT_BUILD if size_of(batch) > FEW else MORE[0])
        opt._install(plain, math.nan)
        return source.like, ("the step is that of the plain gradient until the first pool is read",)
    few = n.looks * size_of(batch) < SMALL  # each of the first small batches is looked at before it moves anything
    rare = power_of_four if size_of(batch) > FEW else power_of_two
    if few or rare(n.steps - n.steps_at_build) or _spike(opt):
        _look(opt, source, batch, opt._scaling(), LATER if size_of(batch) > FEW else MORE[1])
        return source.like, ()
    return None


def _spike(opt: Preconditioned) -> bool:
    """Whether the gradient is much longer than any that was looked at: the loss may curve more here."""
    grads = [p.grad for p in opt._params() if p.grad is not None]
    length = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))) if grads else 0.0
    return not length <= SPIKE * opt._numbers.gradient_scale


def _pool_size(opt: Preconditioned, batch: Batch) -> int:
    read = opt._numbers.read
    if not opt._numbers.built_at > 0:
        return FIRST_POOL
    return int(min(LARGEST_POOL, max(SMALLEST_POOL, WORK * read**0.5 / _directions(read, opt.rank))))


def _directions(read: float, rank: int) -> int:
    """Directions and pool share the work: m · pool = 60 √T with pool ≈ 4 m."""
    return max(1, min(rank, int((WORK * read**0.5 / 4) ** 0.5)))


def _build_is_due(opt: Preconditioned) -> bool:
    n = opt._numbers
    if opt._pool or not n.built_at > 0:
        return True
    left = n.looks > 1 and not 1 / 3 < n.curvature / n.first_curvature < 3
    return left or n.read >= GROWTH_OF_DATA * n.built_at


def _build(opt: Preconditioned, source: Hessian, batch: Batch) -> Seen:
    """P² from the pool, its step from the present batch, which is not in the pool."""
    n, pool = opt._numbers, list(opt._pool)
    opt._pool.clear()
    steps = min(_directions(n.read, opt.rank), source.size)
    known = opt._scaling().blocks[0].U if n.built_at > 0 and not opt._adaptive else None
    found = blocked(source, pool, _pool_size(opt, batch), steps, opt._root_of(source.local(batch)), known)
    if found.negative:
        n.nonconvex = 1.0
        return found.values, ("negative curvature was seen: from here on the rate alone is followed",)
    local = source.local(batch)
    iterations = AT_BUILD if size_of(batch) > FEW else MORE[0]
    value = largest(source, local, found.scaling, iterations)  # nothing has changed if this fails
    opt._install(found.scaling, math.nan)
    n.built_at, n.steps_at_build, n.looks, n.squares, n.longest = n.read, n.steps, 0, 0.0, 0.0
    _note(opt, value, that_holds(source, batch, local, found.scaling, 1 / value.value))
    return found.values, ()


def _look(opt: Preconditioned, source: Hessian, batch: Batch, scaling: Scaling, iterations: int) -> None:
    """λmax(P²B) on a batch that P² does not come from."""
    local = source.local(batch)
    found = largest(source, local, scaling, iterations)
    trusted = opt._numbers.looks >= HELD or found.negative
    _note(opt, found, 1 / found.value if trusted else that_holds(source, batch, local, scaling, 1 / found.value))


def _note(opt: Preconditioned, found: Largest, rate: float) -> None:
    n, value, length, gradient = opt._numbers, 1 / rate, found.length, found.gradient
    n.nonconvex = max(n.nonconvex, float(found.negative))
    n.looks += 1
    share = 1 / min(n.looks, MEMORY)
    n.curvature = value if n.looks == 1 else n.curvature + share * (value - n.curvature)
    n.squares = value**2 if n.looks == 1 else n.squares + share * (value**2 - n.squares)
    n.first_curvature = value if n.looks == 1 else n.first_curvature
    n.longest = max(n.longest, length)
    n.gradient_scale = gradient if n.looks == 1 else max(n.gradient_scale, gradient)


def _set_step(opt: Preconditioned, size: int) -> None:
    """η = 1.4 / λ, cautious while there were few looks, falling once noise rules; with momentum unless batches are small.

    In the mean square, steps on single points are stable up to 2 E[λ]/E[λ²], which for small batches is far below 2/E[λ].
    """
    n, few = opt._numbers, size < SMALL
    wear(opt)
    value = n.squares / n.curvature if few else n.curvature
    added = decay(opt.base, opt._scaling().root if opt._adaptive else None)
    bold = CAREFUL if few or opt._adaptive else BOLD
    rate = bold / (value * (1 + 0.5 / max(n.looks, 1)) + added) / (1 + n.worn / WORN) ** FALL
    n.step, n.momentum = rate / n.factor, 0.0 if few else 0.5 / (1 + n.steps / 500)
    n.limit = LONGER * rate * n.longest
