"""Top eigenvalues, traces and densities of a net with other tools: from a random subset of the data, or from all of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess.spectra import density, spectrum, trace
from infhess.spectra.held import CHUNKS
from infhess_bench.bench.timed_nets import PIECE, TOP, Timed
from infhess_bench.problems import seeded

Distribution = Callable[[Tensor], Tensor]


class Found(NamedTuple):
    """A tensor of eigenvalues, a number or a distribution function; products, and distinct data points."""

    value: Any
    products: int
    points: int


def steps(values: Tensor, weights: Tensor) -> Distribution:
    """The step distribution function with these nodes and weights."""
    order = values.argsort()
    sums = torch.nn.functional.pad((weights / weights.sum())[order].cumsum(0), (1, 0))
    return lambda x: sums[torch.searchsorted(values[order], x, right=True)]


def seed_of(g: torch.Generator) -> int:
    """A number for tools that are seeded by one."""
    return int(torch.randint(2**31, (), generator=g))


def pieces(net: Timed, points: int, g: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """A random subset of the data, in batches."""
    x, y = net.subset(points, g)
    return list(zip(x.split(PIECE), y.split(PIECE)))  # type: ignore[no-untyped-call]


def _found(net: Timed, value: Any, spent: Any) -> Found:
    """A result of infhess; a data point that was read twice counts once."""
    return Found(value, spent.products, min(net.points, spent.data_points))


def infhess_top(net: Timed, points: int, g: torch.Generator) -> Found:
    """`spectrum` with fresh points for each direction, one batch per chunk."""
    found = spectrum(net.source(max(1, points // CHUNKS), g), TOP, points=points, generator=g)
    return _found(net, found.values, found)


def infhess_tight(net: Timed, rtol: float, g: torch.Generator) -> Found:
    """`spectrum` to a tolerance, from batches of a thousand points."""
    found = spectrum(net.source(PIECE, g), TOP, rtol, generator=g)
    return _found(net, found.values, found)


def infhess_trace(net: Timed, batch: int, probes: int, g: torch.Generator) -> Found:
    """`trace` with a fresh batch for each probe."""
    found = trace(net.source(batch, g), probes=probes, generator=g)
    return _found(net, found.value, found)


def infhess_density(net: Timed, points: int, starts: int, m: int, g: torch.Generator) -> Found:
    """`density` from this many points."""
    source = net.source(min(PIECE, points // 2), g)
    found = density(source, points=points, starts=starts, directions=m, generator=g)
    return Found(found.cdf, found.products, found.points)


def curvlinops_operator(net: Timed, points: int, g: torch.Generator) -> Any:
    """The Hessian on a subset of the data."""
    from curvlinops import HessianLinearOperator

    data = pieces(net, points, g)
    return HessianLinearOperator(net.model, net.loss, net.params, data, check_deterministic=False)


def curvlinops_top(net: Timed, points: int, products: int, g: torch.Generator) -> Found:
    """SciPy's eigsh with this many products and no restart."""
    from scipy.sparse.linalg import eigsh

    operator = curvlinops_operator(net, points, g).to_scipy()
    start = torch.randn(net.size, generator=g).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = {"ncv": products - 1, "maxiter": 1, "tol": 10.0}
        values = eigsh(operator, TOP, which="LA", v0=start, return_eigenvectors=False, **few)
    return Found(torch.from_numpy(values.copy()).flip(0), products, points)


def curvlinops_trace(net: Timed, points: int, products: int, g: torch.Generator) -> Found:
    """Hutch++ of curvlinops."""
    from curvlinops import hutchpp_trace

    products -= products % 3
    with seeded(seed_of(g)):
        return Found(float(hutchpp_trace(curvlinops_operator(net, points, g), products)), products, points)


def curvlinops_density(net: Timed, points: int, starts: int, m: int, g: torch.Generator) -> Found:
    """The smoothed density of curvlinops, accumulated."""
    from curvlinops import lanczos_approximate_spectrum
    from scipy.sparse.linalg import eigsh

    operator = curvlinops_operator(net, points, g)
    # By default it computes the lowest eigenvalue to a hundredth, which takes longer than all the rest.
    ends = eigsh(operator.to_scipy(), 2, which="BE", ncv=20, maxiter=1, tol=10.0, return_eigenvectors=False)
    with seeded(seed_of(g)):
        grid, values = lanczos_approximate_spectrum(operator, m, num_repeats=starts, boundaries=(min(ends), max(ends)))
    return Found(steps(grid.double(), values.double()), 20 + starts * m, points)


def eigenthings_operator(net: Timed, points: int, g: torch.Generator) -> Any:
    """The Hessian on a subset of the data."""
    from hessian_eigenthings import HessianOperator

    return HessianOperator(net.model, pieces(net, points, g), lambda model, b: net.loss(model(b[0]), b[1]))


def eigenthings_top(net: Timed, points: int, products: int, g: torch.Generator) -> Found:
    """Lanczos of hessian-eigenthings."""
    from hessian_eigenthings import lanczos

    operator = eigenthings_operator(net, points, g)
    found = lanczos(operator, k=TOP, max_iter=products, which="LA", seed=seed_of(g), reorthogonalize=True)
    return Found(torch.as_tensor(found.eigenvalues).sort(descending=True).values, products, points)


def eigenthings_trace(net: Timed, points: int, products: int, g: torch.Generator) -> Found:
    """The default of hessian-eigenthings: Hutch++."""
    from hessian_eigenthings import trace as its_trace

    found = its_trace(eigenthings_operator(net, points, g), num_matvecs=products, seed=seed_of(g))
    return Found(float(found.estimate), products, points)


def eigenthings_density(net: Timed, points: int, starts: int, m: int, g: torch.Generator) -> Found:
    """The nodes and weights of hessian-eigenthings, which are better than its smoothed density."""
    from hessian_eigenthings import spectral_density

    found = spectral_density(eigenthings_operator(net, points, g), num_runs=starts, lanczos_steps=m, seed=seed_of(g))
    nodes = steps(found.raw_eigenvalues.double().flatten(), found.raw_weights.double().flatten())
    return Found(nodes, starts * m, points)


def pyhessian_tool(net: Timed, points: int, g: torch.Generator) -> Any:
    """PyHessian on one batch, whose graph it keeps."""
    from pyhessian import hessian

    return hessian(net.model, net.loss, data=net.subset(points, g), cuda=False)


def pyhessian_top(net: Timed, points: int, products: int, g: torch.Generator) -> Found:
    """Power iterations with deflation, with this many products for each eigenvalue."""
    with seeded(seed_of(g)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls backward(create_graph=True), at which torch warns each time
        values, _ = pyhessian_tool(net, points, g).eigenvalues(maxIter=products, tol=1e-3, top_n=TOP)
    return Found(torch.tensor(values).sort(descending=True).values, TOP * products, points)


def pyhessian_trace(net: Timed, points: int, probes: int, g: torch.Generator) -> Found:
    """PyHessian's Hutchinson estimator."""
    with seeded(seed_of(g)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Found(float(mean(pyhessian_tool(net, points, g).trace(maxIter=probes, tol=0.0))), probes, points)
