"""A measured step, and the bounds that keep a wrong one from doing harm where the loss is not convex."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_source import BatchSource
from infhess.optim.numbers import Numbers
from infhess.optim.scaling import Scaling
from infhess.optim.step_length import largest, mean_of

# Fresh batches that a step is measured on, and power iterations on each.
FRESH, ITERATIONS = 4, 6
# Without convexity: the longest step relative to |w|, the first relative to |w|, and the growth from one estimate to the next.
LONGEST, FIRST, GROWTH = 0.03, 0.01, 4.0


class Step(NamedTuple):
    """P², what multiplies P²g (NaN: the base's own rate), the longest |Δw| allowed for, and what to tell."""

    scaling: Scaling
    step: float
    limit: float = math.inf
    notes: tuple[str, ...] = ()


def measured_step(source: BatchSource, scaling: Scaling, numbers: Numbers, w: Tensor, decay: float) -> Step:
    """1/λmax(P²B), the mean over a few fresh batches; bounded once negative curvature has been seen.

    Weight decay is added to λmax: the base applies it at the same rate, outside of P.
    """
    found, lengths = [], []
    for _ in range(FRESH):
        local = source.local(source.draw())
        found.append(largest(source, local, scaling, ITERATIONS))
        lengths.append(float(torch.linalg.vector_norm(scaling(local.gradient()))))
    value, negative = mean_of(found)
    if not value > 0:
        raise ValueError(
            "the loss has no curvature on these batches, so there is no step to measure; is it linear here?"
        )
    value += decay
    if not (negative or numbers.nonconvex):
        return Step(scaling, 1 / (value * scaling.factor))
    numbers.nonconvex = 1.0
    return _bounded(scaling, 1 / value, numbers, float(torch.linalg.vector_norm(w)), max(lengths))


def _bounded(scaling: Scaling, rate: float, numbers: Numbers, size: float, length: float) -> Step:
    """A rate that moves w by a hundredth at first and grows fourfold at the most from one estimate to the next."""
    notes = ["negative curvature was seen: steps are kept below 3 % of |w|"]
    before = numbers.step * numbers.factor if numbers.armed else math.nan
    most = GROWTH * before if before > 0 else FIRST * size / length if size > 0 else math.inf
    if rate > most:
        notes.append(f"curvature allows for a rate of {rate:.3g}; it is held at {most:.3g} until the next estimate")
        rate = most
    limit = LONGEST * size if size > 0 else math.inf
    return Step(scaling, rate / scaling.factor, limit, tuple(notes))
