"""Traces and densities beside other tools, in seconds at equal error: each climbs a ladder of settings until it is there."""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from infhess.bench.coverage import Truth, truth_of
from infhess.bench.eigen_baselines import INFHESS, AsModule, one_batch
from infhess.curvature import Hessian
from infhess.harness import Job, Row, markdown
from infhess.problems import CurvatureProblem, seeded
from infhess.spectra import density, trace

EXPERIMENT = "bench-curvature-seconds"
PROBLEMS = ("digits-mlp", "mlp/start", "mlp/trained")
TRACE, DENSITY = "trace to 5 %", "density to .02"
TARGETS = {TRACE: 0.05, DENSITY: 0.02}
# Rungs: random vectors for a trace, starts and directions for a density; and how often each is tried.
LADDERS: dict[str, tuple[tuple[int, ...], ...]] = {
    TRACE: ((16,), (64,), (256,), (1024,)),
    DENSITY: ((1, 32), (4, 32), (4, 96), (16, 96), (32, 96)),
}
TRIALS = {TRACE: 9, DENSITY: 3}
BATCH, LARGE = 64, 1024
NEAR_ZERO = 1e-3  # nobody tells apart what lies within this share of the largest magnitude

Distribution = Callable[[Tensor], Tensor]
Tool = Callable[..., Any]  # of a problem, the numbers of a rung, and a generator


def batches(problem: CurvatureProblem, size: int, g: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """All the data in a random order."""
    order = torch.randperm(len(problem.x), generator=g)
    return list(zip(problem.x[order].split(size), problem.y[order].split(size)))  # type: ignore[no-untyped-call]


def source(problem: CurvatureProblem, size: int, g: torch.Generator) -> Hessian:
    """Its Hessian, from batches of this size."""
    w = problem.w.clone().requires_grad_()
    return Hessian(lambda b: problem.loss(problem.model(w, b[0]), b[1]), [w], batches(problem, size, g))


def steps(values: Tensor, weights: Tensor) -> Distribution:
    """The distribution function of nodes and weights."""
    order = values.argsort()
    sums = torch.nn.functional.pad((weights / weights.sum())[order].cumsum(0), (1, 0))
    return lambda x: sums[torch.searchsorted(values[order], x, right=True)]


def infhess_trace(problem: CurvatureProblem, probes: int, g: torch.Generator) -> float:
    """Mini-batches of 64."""
    return trace(source(problem, BATCH, g), probes=probes, generator=g).value


def infhess_density(problem: CurvatureProblem, starts: int, m: int, g: torch.Generator) -> Distribution:
    """Over all the data."""
    everything = len(problem.x)
    return density(source(problem, LARGE, g), points=everything, starts=starts, directions=m, generator=g).cdf


def curvlinops_operator(problem: CurvatureProblem, g: torch.Generator) -> Any:
    """Of all the data."""
    from curvlinops import HessianLinearOperator

    net = AsModule(problem)
    return HessianLinearOperator(net, problem.loss, [net.w], batches(problem, LARGE, g), check_deterministic=False)


def curvlinops_trace(problem: CurvatureProblem, probes: int, g: torch.Generator) -> float:
    """Its Hutch++."""
    from curvlinops import hutchpp_trace

    with seeded(int(torch.randint(2**31, (), generator=g))):
        return float(hutchpp_trace(curvlinops_operator(problem, g), probes - probes % 3))


def curvlinops_density(problem: CurvatureProblem, starts: int, m: int, g: torch.Generator) -> Distribution:
    """Its smoothed density, summed up."""
    from curvlinops import lanczos_approximate_spectrum

    with seeded(int(torch.randint(2**31, (), generator=g))):
        grid, values = lanczos_approximate_spectrum(curvlinops_operator(problem, g), m, num_repeats=starts)
    return steps(grid.double(), values.double())


def eigenthings_operator(problem: CurvatureProblem, g: torch.Generator) -> Any:
    """Of all the data."""
    from hessian_eigenthings import HessianOperator

    return HessianOperator(AsModule(problem), batches(problem, LARGE, g), lambda net, b: problem.loss(net(b[0]), b[1]))


def eigenthings_trace(problem: CurvatureProblem, probes: int, g: torch.Generator) -> float:
    """As it comes: Hutch++."""
    from hessian_eigenthings import trace as its_trace

    seed = int(torch.randint(2**31, (), generator=g))
    found = its_trace(eigenthings_operator(problem, g), num_matvecs=probes, seed=seed)
    return float(found.estimate)


def eigenthings_density(problem: CurvatureProblem, starts: int, m: int, g: torch.Generator) -> Distribution:
    """Its nodes and weights, which are better than its smoothed density."""
    from hessian_eigenthings import spectral_density

    seed = int(torch.randint(2**31, (), generator=g))
    found = spectral_density(eigenthings_operator(problem, g), num_runs=starts, lanczos_steps=m, seed=seed)
    return steps(found.raw_eigenvalues.double().flatten(), found.raw_weights.double().flatten())


def pyhessian_tool(problem: CurvatureProblem, size: int, g: torch.Generator) -> Any:
    """On one batch, which may be all the data."""
    from pyhessian import hessian

    return hessian(AsModule(problem), problem.loss, data=one_batch(problem, size, g), cuda=False)


def pyhessian_trace(problem: CurvatureProblem, probes: int, g: torch.Generator) -> float:
    """Its Hutchinson estimate over all the data."""
    with seeded(int(torch.randint(2**31, (), generator=g))), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it calls backward(create_graph=True), as torch warns each time
        return float(mean(pyhessian_tool(problem, len(problem.x), g).trace(maxIter=probes, tol=0.0)))


TOOLS: dict[str, tuple[dict[str, Tool], str | None]] = {
    INFHESS: ({TRACE: infhess_trace, DENSITY: infhess_density}, None),
    "curvlinops": ({TRACE: curvlinops_trace, DENSITY: curvlinops_density}, "curvlinops"),
    "hessian-eigenthings": ({TRACE: eigenthings_trace, DENSITY: eigenthings_density}, "hessian_eigenthings"),
    "PyHessian": ({TRACE: pyhessian_trace}, "pyhessian"),  # its density calls torch.eig, which PyTorch has no more
}


def jobs(seed: int, problems: Sequence[str] = PROBLEMS) -> Iterator[Job]:
    """One for each problem, quantity and tool that is installed."""
    for problem in problems:
        for quantity in (TRACE, DENSITY):
            for tool, (calls, package) in TOOLS.items():
                if quantity in calls and (package is None or importlib.util.find_spec(package)):
                    yield Job(Row(EXPERIMENT, problem, f"{tool}: {quantity}", seed, 0), climbed, (tool, quantity))


def climbed(template: Row, tool: str, quantity: str) -> list[Row]:
    """The first rung whose mean error is below the target: processor seconds, error as loss, vectors multiplied as metric.

    NaN seconds where the last rung is not enough.
    """
    truth, call = truth_of(template.problem), TOOLS[tool][0][quantity]
    for number, rung in enumerate(LADDERS[quantity]):
        seconds, errors = [], []
        for trial in range(TRIALS[quantity]):
            g = torch.Generator().manual_seed(10**6 * (template.seed + 1) + 1000 * number + trial)
            start = time.process_time()
            found = call(truth.problem, *rung, g)
            seconds.append(time.process_time() - start)
            errors.append(_error(found, truth, quantity))
        row = replace(template, seconds=median(seconds), loss=mean(errors), metric=float(math.prod(rung)))
        if row.loss <= TARGETS[quantity]:
            return [row]
    return [replace(row, seconds=math.nan)]


def _error(found: Any, truth: Truth, quantity: str) -> float:
    total = float(torch.trace(truth.H))
    return abs(found / total - 1) if quantity == TRACE else distance(found, truth.values)


def distance(found: Distribution, values: Tensor) -> float:
    """The largest difference of two distribution functions, but for points close to zero."""
    low, high = float(values.min()), float(values.max())
    shares = torch.linspace(0.005, 0.995, 120, dtype=torch.float64)
    x = torch.cat([torch.quantile(values, shares), torch.linspace(low, high, 80, dtype=torch.float64)])
    x = x[x.abs() > NEAR_ZERO * float(values.abs().max())]
    exact = (values[None] <= x[:, None]).double().mean(1)
    return float((found(x) - exact).abs().max())


def summary(rows: Sequence[Row]) -> str:
    """Seconds by tool, a column for each problem and quantity."""
    cells = {(r.problem, *r.method.split(": ")): r for r in rows if r.experiment == EXPERIMENT}
    columns = list(dict.fromkeys((p, q) for p, _, q in cells))
    lines = [["processor seconds (error)", *(f"{p}: {q}" for p, q in columns)]]
    lines += [[tool, *(_shown(cells.get((p, tool, q))) for p, q in columns)] for tool in TOOLS]
    return markdown(lines)


def _shown(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"not reached ({row.loss:.3f})" if math.isnan(row.seconds) else f"{row.seconds:.2f} ({row.loss:.3f})"
