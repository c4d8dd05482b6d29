"""The step that P²B allows for: a few Lanczos iterations on batches that the estimate has not seen."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_source import BatchSource, Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.flat import shifted
from infhess.curvature.local import Local
from infhess.optim.rate.probe import dot
from infhess.preconditioners.scaling import Scaling

# Curvature below minus this share of the largest is no rounding, and no convex loss.
NEGATIVE = 1e-3
# Batches of fewer points than this are too noisy to be taken one by one.
SMALL = 32
# Mean curvature along a step in units of 1/rate; at most 1 on a quadratic, and e.g. 1.44 where it doubles on the way.
MOST_ALONG = 1.4
# How many times a rate is cut to a quarter, at most.
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
    """The largest |eigenvalue| of P²B on one batch, whether any curvature on the way was negative, and |P²g|, |g|."""

    value: float
    negative: bool
    length: float
    gradient: float


def largest_curvature(source: BatchSource, local: Local, scaling: Scaling, iterations: int) -> Largest:
    """Lanczos from the gradient on M^{½}BM^{½}, with M = P² up to its factor: one product and one M per iteration.

    No root of M is needed: z = M^{−½}x is carried as x and as p = M⁻¹x. The norm of the tridiagonal matrix, with its last row,
    is a lower bound of |λ|max from the first product on, when it is √(hᵀMh / gᵀMg) with h = BMg. Stops when it settles to 1 %.
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
    """Whether gᵀMg is of a gradient that a step can be measured along."""
    if not 0 < along < math.inf:
        raise NothingSeenError(
            f"expected a finite gradient other than zero to measure a step along, got gᵀMg = {along:g}"
        )


def check_finite(product: float) -> None:
    """Whether a number made of a product is finite."""
    if not product < math.inf:
        raise ValueError("a product holds NaN or infinity; is the loss finite and smooth at this point?")


def check_curvature(value: float) -> None:
    """Whether it is finite, and not zero."""
    check_finite(value)
    if not value > 0:
        raise NothingSeenError("the loss has no curvature along its gradient here; is it linear?")


def _extremes(T: Tensor, j: int) -> tuple[float, float]:
    """The norm of the tridiagonal matrix with its last row, and its lowest eigenvalue without."""
    if j == 1:
        return math.hypot(float(T[0, 0]), float(T[1, 0])), float(T[0, 0])
    return float(torch.linalg.matrix_norm(T[: j + 1, :j], 2)), float(torch.linalg.eigvalsh(T[:j, :j])[0])


def backtracked(source: Hessian, batch: Batch, local: Local, scaling: Scaling, rate: float) -> float:
    """The rate, or a part of it, such that the mean curvature along the step is at most 1.4/rate.

    On a quadratic the first one holds, at the price of a gradient where the step leads. Losses such as Poisson's curve more by
    orders of magnitude where a step from zero leads.
    """
    before = local.gradient()
    move = scaling(before)
    length = dot(before, move) ** 0.5
    for _ in range(MOST_CUTS):
        with shifted(source.flat, -rate * move):
            try:
                change = before - source.gradient_at(batch, local.seed)
                value = dot(change, scaling(change)) ** 0.5 / (rate * length)
            except ValueError:
                value = math.inf
        if value * rate <= MOST_ALONG:
            break
        rate = max(rate / 4, 1 / value)
    return rate
