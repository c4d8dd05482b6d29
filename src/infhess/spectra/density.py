"""The distribution of all eigenvalues of the full-data matrix, by stochastic Lanczos quadrature, with rigorous bounds."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from infhess._checks import count, finite, finite_number, generator_on, share
from infhess._precision import full_precision
from infhess._random import normal
from infhess.curvature import Source, as_source
from infhess.curvature.frozen import Frozen, frozen
from infhess.spectra.density_result import Density, Share
from infhess.spectra.halves import Halves, doublings, halves
from infhess.spectra.law import Bracket, Law, Sampled, sampled
from infhess.spectra.quadrature import Quadrature, quadratures
from infhess.spectra.rounds import NOT_FINITE, UNKNOWN

LEAST_POINTS = 1024  # in the first sample
DIRECTIONS = 96  # per start
ENOUGH = 1500  # starts × N: their noise is then at most ± .036, and more directions help more than more starts
BUDGET = 2**23
GROWTH = 4
NEAR_ZERO = 1e-3
FINEST = 1e-3  # least smoothing, relative to the width of the spectrum


@full_precision
def density(
    source: Any,
    *,
    atol: float = 0.02,
    points: int | None = None,
    starts: int | None = None,
    directions: int | None = None,
    zero: float | None = None,
    budget: int | None = None,
    generator: torch.Generator | None = None,
) -> Density:
    """The share of eigenvalues of the full-data matrix at or below every x, with bounds, and its density.

    Stochastic Lanczos quadrature (Ubaru, Chen & Saad 2017) for the matrix of a fixed sample. The Chebyshev–Markov–Stieltjes
    inequality bounds the error of quadrature, and the noise of V Gaussian starts has an exact distribution (Beta). The
    spectrum of a sample differs from that of all the data by more than noise: it is wider, and has more eigenvalues near
    zero. The spectra of the two halves of the sample show how much one doubling of the data changes it. If the size of the
    data is unknown, or N is so small that all eigenvalues are computed, Weyl's inequality bounds the change instead, from
    the spectrum of the sampling error; such bounds are about twice as wide. If the missing data contributes more than
    `atol` to the error, more is read; if all data is read, there is no sampling error.

    Args:
        source: `Hessian`, `GaussNewton`, `Fisher`, a matrix, or `Products` whose products are reproducible.
        atol: read more data while sampling adds more than this to the half-width of an interval.
        points: the size of the sample, instead of `atol`.
        starts: V; by default as many as keep their noise within ± .036.
        directions: products per start; 96 by default.
        zero: eigenvalues within ± zero count as near zero; by default a thousandth of the largest magnitude.
        budget: no larger sample if products × data points would exceed this; 2²³ by default.
        generator: random numbers for the starts.

    >>> import torch
    >>> found = density(torch.diag(torch.cat([torch.zeros(6), torch.tensor([-1.0, 1.0, 2.0, 4.0])])))
    >>> found.cdf(torch.tensor([-0.5, 0.5, 3.0])).round(decimals=4).tolist()
    [0.1, 0.7, 0.9]
    >>> round(found.near_zero.value, 4), round(found.negative.value, 4)
    (0.6, 0.1)

    """
    source = as_source(source)
    atol = share(atol, "atol")
    zero = None if zero is None else finite_number(zero, "zero", least=0.0)
    generator_on(generator)
    generator = generator or torch.Generator().manual_seed(0)
    m = min(DIRECTIONS if directions is None else count(directions, "directions"), source.size)
    V = max(1, math.ceil(ENOUGH / source.size)) if starts is None else count(starts, "starts")
    most = BUDGET if budget is None else count(budget, "budget")
    products, data_points = source.products, source.data_points
    M = _first(source, V * m, most) if points is None else count(points, "points")
    while True:
        sample = frozen(source, M)
        law = _law(sample, source, V, m, generator)
        error = _data_error(law) if sample.noise_is_known else math.nan
        grown = 0 if points is not None else _grown(source, M, V * m, most)
        stopped = _why(sample, error, atol, "goes on" if grown else "budget" if points is None else "points")
        if stopped != "goes on":
            break
        M = grown
    if math.isnan(error):
        warnings.warn(UNKNOWN, stacklevel=2)
    cost = source.products - products, source.data_points - data_points
    return _density(law, zero, error, sample.points, cost, stopped)


def _first(source: Source, products: int, budget: int) -> int:
    """Points of the first sample: all of them if they are few."""
    n = _population(source)
    few = n is not None and n <= 2 * LEAST_POINTS and n * products <= budget
    return n if few and n is not None else LEAST_POINTS


def _grown(source: Source, points: int, products: int, budget: int) -> int:
    """Points of the next sample: all if the budget allows, or four times as many; 0 if neither."""
    n = _population(source)
    sizes = ([] if n is None else [n]) + [GROWTH * points]
    return next((M for M in sizes if points < M and M * products * (1 if n == M else 2) <= budget), 0)


def _population(source: Source) -> int | None:
    stream = getattr(source, "stream", None)
    return None if stream is None else stream.population


def _why(sample: Frozen, error: float, atol: float, otherwise: str) -> str:
    if sample.exact:
        return "all data"
    if math.isnan(error):
        return "noise unknown"
    if error <= atol:
        return "tolerance"
    return otherwise


def _law(sample: Frozen, source: Source, V: int, m: int, generator: torch.Generator) -> Law:
    N = source.size
    if V * m >= N:
        seen, bounds = _all_of(sample, source)
        return Law(seen, N, 0, bounds)
    seen, data = _by_lanczos(sample, normal(N, V, like=source.like, generator=generator), m, generator)
    if not bool(torch.isfinite(seen.T).all()):
        raise ValueError(NOT_FINITE)
    return Law(seen, N, V, data)


def _by_lanczos(
    sample: Frozen, starts: Tensor, m: int, generator: torch.Generator
) -> tuple[Quadrature, Sampled | Halves | None]:
    """Quadrature of the sample; and of both halves if the size of the data is known, else of the sampling error."""
    if sample.exact or not sample.noise_is_known:
        return quadratures(sample.apply, [starts], [m])[0], None
    if sample.population is not None:
        few = math.ceil(m / 2)  # a difference needs fewer directions than its location
        seen, *parts = quadratures(sample.apply, [starts] * 3, [m, few, few])
        to_come = doublings(sample.points, sample.population)
        return seen, halves(seen.shorter(few), (parts[0], parts[1]), to_come, sample.population_factor)

    def with_error(S: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
        Y, A, B = sample.apply(S, R, R)
        return Y, sample.scaled(A - B)

    others = normal(*starts.shape, like=starts, generator=generator)
    seen, error = quadratures(with_error, [starts, others], [m, m])
    return seen, sampled(seen, error)


def _all_of(sample: Frozen, source: Source) -> tuple[Quadrature, Sampled | None]:
    """The matrix itself from N products, and all of its eigenvalues: each is a quadrature rule with one node."""
    eye = torch.eye(source.size).to(source.like)
    alone = sample.exact or not sample.noise_is_known
    blocks = [sample.apply(S, *(() if alone else (S, S))) for S in eye.split(16, 1)]  # type: ignore[no-untyped-call]
    H, A, B = (torch.cat(columns, 1) for columns in zip(*blocks))
    seen = _rule(H)
    return seen, None if alone else sampled(seen, _rule(sample.scaled(A - B)))


def _rule(A: Tensor) -> Quadrature:
    if not bool(finite(A).all()):
        raise ValueError(NOT_FINITE)
    values, eps = torch.linalg.eigvalsh((A + A.mT).double() / 2), torch.finfo(A.dtype).eps
    return Quadrature(values[:, None, None], torch.zeros_like(values), torch.full_like(values, 1 / len(values)), eps)


def _data_error(law: Law) -> float:
    """The most that sampling adds to the half-width of an interval."""
    return law.data_error(torch.quantile(law.seen.nodes()[0].flatten(), torch.linspace(0, 1, 128).to(law.seen.T)))


def _density(law: Law, zero: float | None, error: float, points: int, cost: tuple[int, int], stopped: str) -> Density:
    theta, weights, _ = law.seen.nodes()
    zero = NEAR_ZERO * float(theta.abs().max()) if zero is None else zero
    width = _widths(law.seen)
    grid = _grid(theta, width)
    kernel = torch.exp(-0.5 * ((grid[:, None] - theta.flatten()) / width.flatten()).square()) / math.sqrt(2 * math.pi)
    values = kernel @ (weights / width).flatten()
    ends = torch.tensor([-zero, zero], dtype=theta.dtype, device=theta.device)
    low, high, se = (b + 0 * error for b in law.bounds(ends))  # NaN: nothing is known
    middle = torch.stack(law.seen.bounds(ends)).mean(0)
    negative = Share(float(middle[0]), Bracket(low[:1], high[:1], se[:1]), law)
    between = (low[1:] - high[:1]).clamp(min=0), (high[1:] - low[:1]).clamp(max=1)
    near = Share(float(middle[1] - middle[0]), Bracket(*between, torch.hypot(se[:1], se[1:])), law)
    return Density(grid, values, negative, near, zero, error, points, *cost, stopped, law)


def _widths(seen: Quadrature) -> Tensor:
    """Width of the smoothing of each node: its uncertainty, the smaller of its residual and the distance to its neighbours."""
    theta, _, residual = seen.nodes()
    extent = float(theta.max() - theta.min()) or float(theta.abs().max()) or 1.0
    edges = torch.nn.functional.pad(theta[:, None], (1, 1), mode="replicate")[:, 0]
    gap = (edges[:, 2:] - edges[:, :-2]) / 2 if theta.shape[1] > 1 else torch.zeros_like(theta)
    return torch.minimum(gap, residual).clamp(min=FINEST * extent)


def _grid(theta: Tensor, width: Tensor) -> Tensor:
    """A regular grid, with more points around the nodes of the first start, or around all eigenvalues of a small matrix."""
    nodes, spread = (theta[:, 0], width[:, 0]) if theta.shape[1] == 1 else (theta[0], width[0])
    around = (nodes + spread * torch.arange(-4, 5).to(theta)[:, None]).flatten()
    ends = float((theta - 4 * width).min()), float((theta + 4 * width).max())
    points: Tensor = torch.cat([around, torch.linspace(*ends, 129, dtype=theta.dtype).to(theta)]).sort().values
    return points
