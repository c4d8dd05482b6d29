"""The step length that P²B allows: a few Lanczos iterations on batches that were not used to build P²."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_curvature import BatchCurvature
from infhess.curvature.batch_source import BatchSource, Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.flat import shifted
from infhess.optim.rate.probe import dot
from infhess.preconditioners.scaling import Scaling

# Curvature below minus this share of the largest is not due to rounding: the loss is not convex.
NEGATIVE = 1e-3
# Batches of fewer points than this are too noisy to be judged one by one.
SMALL = 32
# Mean curvature along a step in units of 1/rate: at most 1 on a quadratic, and e.g. 1.44 if curvature doubles on the way.
MOST_ALONG = 1.4
# A rise of the loss by less than this share of it counts as rounding, and a cut by a larger factor than this as well.
ROUNDING, LEAST = 1e-6, 1e-12
# Maximal number of times that a rate is divided by four.
MOST_CUTS = 16


class NothingSeenError(ValueError):
    """A batch that says nothing about curvature: no gradient, or no curvature along it.

    >>> import torch, infhess
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), rank=1)
    >>> try:
    ...     opt.update(lambda x: (x * w).mean(), [torch.ones(4, 2)])  # linear
    ... except infhess.NothingSeenError:
    ...     print("no curvature, so no step length")
    no curvature, so no step length
    """


class Largest(NamedTuple):
    """The largest |eigenvalue| of P²B on one batch, whether any negative curvature was met, and |P²g|, |g|."""

    value: float
    negative: bool
    length: float
    gradient: float


def largest_curvature(source: BatchSource, local: BatchCurvature, scaling: Scaling, iterations: int) -> Largest:
    """Lanczos from the gradient on M^{½}BM^{½}, with M = P² without its factor: one product and one M per iteration.

    No root of M is needed: z = M^{−½}x is stored as x and p = M⁻¹x. The norm of the tridiagonal matrix with its last row is
    a lower bound of |λ|max: after one product it is √(hᵀMh / gᵀMg) with h = BMg. Stops when it changes by less than 1 %.
    """
    p = local.gradient()
    x = scaling(p)
    gradient, length, n = dot(p, p) ** 0.5, dot(x, x) ** 0.5, dot(p, x)
    check_gradient(n)
    p, x, previous = p / n**0.5, x / n**0.5, torch.zeros_like(p)
    T = torch.zeros(iterations + 1, iterations + 1, dtype=torch.float64)
    value, negative = 0.0, False
    for j in range(iterations):
        r = source.product(local, x)
        alpha = dot(x, r)
        r = r - alpha * p - float(T[j, j - 1]) * previous
        Mr = scaling(r)
        beta = max(dot(r, Mr), 0.0) ** 0.5
        check_finite(abs(alpha) + beta)
        T[j, j], T[j, j + 1], T[j + 1, j] = alpha, beta, beta
        before, (value, lowest) = value, _extremes(T, j + 1)
        negative = lowest < -NEGATIVE * value
        if beta <= 1e-6 * value or abs(value - before) < 0.01 * value:
            break
        previous, p, x = p, r / beta, Mr / beta
    check_curvature(value)
    return Largest(value, negative, length, gradient)


def check_gradient(along: float) -> None:
    """Check that gᵀMg belongs to a gradient along which a step can be measured."""
    if not 0 < along < math.inf:
        raise NothingSeenError(
            f"expected a finite gradient other than zero to measure a step along, got gᵀMg = {along:g}"
        )


def check_finite(product: float) -> None:
    """Check that a number computed from a product is finite."""
    if not product < math.inf:
        raise ValueError(
            "a product holds NaN or infinity; is the loss finite and smooth at this point? in float16 it may overflow: use "
            "bfloat16, or a smaller scale of the loss"
        )


def check_curvature(value: float) -> None:
    """Check that a curvature is finite and not zero."""
    check_finite(value)
    if not value > 0:
        raise NothingSeenError("the loss has no curvature along its gradient here; is it linear?")


def _extremes(T: Tensor, j: int) -> tuple[float, float]:
    """The norm of the tridiagonal matrix with its last row, and its lowest eigenvalue without that row."""
    if j == 1:
        return math.hypot(float(T[0, 0]), float(T[1, 0])), float(T[0, 0])
    return float(torch.linalg.matrix_norm(T[: j + 1, :j], 2)), float(torch.linalg.eigvalsh(T[:j, :j])[0])


def backtracked(source: Hessian, batch: Batch, local: BatchCurvature, scaling: Scaling, rate: float) -> float:
    """The rate, shortened until the mean curvature along the step is at most 1.4/rate and the loss of the batch falls.

    On a quadratic the first rate passes, at the cost of one gradient at the end of the step. Losses such as Poisson's can
    have orders of magnitude more curvature there, for a step from zero. Where most points saturate there is hardly any at both
    ends of a step, and the loss alone shows the bend between them.
    """
    before = local.gradient()
    loss, move = local.value, scaling(before)
    slope = -dot(before, move)
    for _ in range(MOST_CUTS):
        bend, value = 1.0, math.inf
        with shifted(source.flat, -rate * move), suppress(ValueError):  # where the loss is not finite
            after, gradient = source.value_and_gradient(batch, local.seed)
            change = before - gradient
            value = (dot(change, scaling(change)) / -slope) ** 0.5 / rate
            if after - loss > ROUNDING * abs(loss):
                bend = max(tangents_meet(rate * slope, -rate * dot(gradient, move), after - loss), LEAST)
        if value * rate <= MOST_ALONG and bend == 1.0:
            break
        rate = min(max(rate / 4, 1 / value), bend * rate)
    return rate


def tangents_meet(then: float, now: float, rise: float) -> float:
    """The share of a step at which the tangents at its ends meet, by the slopes there and the rise of a convex loss along it.

    If the loss along the step consists of two straight lines, this is their kink, which may be many orders of magnitude nearer
    than the zero of the slope on a line through both slopes. On a quadratic it is a half. Less than one if the loss has risen.
    """
    return (now - rise) / (now - then)
