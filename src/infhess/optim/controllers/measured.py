"""A measured step, and the bounds that keep a wrong one from doing harm where the loss is not convex."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.controllers.step_length import SMALL, Largest, NothingSeenError, backtracked, largest_curvature
from infhess.preconditioners.scaling import Scaling

# Fresh batches that a step is measured on, and power iterations on each.
FRESH, ITERATIONS = 4, 6
# Without convexity: the longest step relative to |w|, the first relative to |w|, and the growth from one estimate to the next.
LONGEST, FIRST, GROWTH = 0.03, 0.01, 4.0
# With convexity: the longest step relative to the longest of the batches probed, since losses that are no quadratics may
# curve more where a step leads.
LONGER = 3.0


class Step(NamedTuple):
    """P², what multiplies P²g (NaN: the base's own rate), the longest |Δw| allowed for, and what to tell."""

    scaling: Scaling
    step: float
    limit: float = math.inf
    notes: tuple[str, ...] = ()


def measured_step(source: Hessian, scaling: Scaling, state: ControllerState, w: Tensor, decay: float) -> Step:
    """1/λmax(P²B), the mean over a few fresh batches; bounded once negative curvature has been seen.

    Weight decay is added to λmax: the base applies it at the same rate, outside of P. Where batches have few points the mean
    is that of λ² over that of λ: in the mean square, steps on single points are stable up to twice its inverse.
    """
    found, last, size = _probes(source, scaling)
    mean = sum(f.value for f in found) / len(found)
    value = sum(f.value**2 for f in found) / len(found) / mean if size < SMALL else mean
    longest = max(f.length for f in found)
    if not (any(f.negative for f in found) or state.nonconvex):
        rate = backtracked(source, last, source.local(last), scaling, 1 / (value + decay))
        return Step(scaling, rate / scaling.factor, LONGER * rate * longest)
    state.nonconvex = 1.0
    return _bounded(scaling, 1 / (value + decay), state, float(torch.linalg.vector_norm(w)), longest)


def _probes(source: Hessian, scaling: Scaling) -> tuple[list[Largest], Batch, int]:
    """λmax(P²B) on fresh batches, four and 32 points at the least, less zero gradients; the last one and the points of one."""
    found: list[Largest] = []
    last, points, tries, failure = None, 0, 0, None
    while len(found) < FRESH or points < SMALL:
        batch = source.draw()
        tries += 1
        try:
            found.append(largest_curvature(source, source.local(batch), scaling, ITERATIONS))
            points, last = points + source.points_of(batch), batch
        except NothingSeenError as error:
            failure = error
        if tries >= 4 * FRESH + SMALL:
            break
    if not found:
        raise failure or NothingSeenError("no batch to measure a step on")
    return found, last, points // len(found)


def _bounded(scaling: Scaling, rate: float, state: ControllerState, size: float, length: float) -> Step:
    """A rate that moves w by a hundredth at first and grows fourfold at the most from one estimate to the next."""
    notes = ["negative curvature was seen: steps are kept below 3 % of |w|"]
    before = state.step * state.factor if state.active else math.nan
    most = GROWTH * before if before > 0 else FIRST * size / length if size > 0 else math.inf
    if rate > most:
        notes.append(f"curvature allows for a rate of {rate:.3g}; it is held at {most:.3g} until the next estimate")
        rate = most
    limit = LONGEST * size if size > 0 else math.inf
    return Step(scaling, rate / scaling.factor, limit, tuple(notes))
