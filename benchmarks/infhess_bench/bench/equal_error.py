"""Top eigenvalues, traces and densities next to other tools, in seconds at equal error: each climbs a ladder of settings.

Beside the ladders, two claims about single calls.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess_bench.bench import matfree_tools
from infhess_bench.bench import timed_tools as tools
from infhess_bench.bench.timed_nets import NETS, FullData, full_data, timed_net, top_error
from infhess_bench.bench.timed_tools import Distribution, Found
from infhess_bench.harness import Job, Row, markdown, processor_seconds

EXPERIMENT = "bench-curvature-seconds"
SIZES, QUICK = ("1e4 weights", "1e5 weights", "1e6 weights"), ("digits",)
INFHESS, CURVLINOPS, TRUTH = "infhess", "curvlinops + SciPy", "truth: all of the data"
FIRST = ", first call"  # of a tool that compiles: paid once for each net and batch size
ALL = 10**9  # data points: all there are
NEAR_ZERO = 1e-3  # differences within this share of the largest magnitude are ignored


@dataclass(frozen=True)
class Quantity:
    """What is measured, targets by name, and settings of other tools in the order of their cost."""

    targets: dict[str, float]
    rungs: tuple[tuple[int, ...], ...]
    trials: int


TOPS, TRACE, DENSITY = "top five", "trace", "density"
QUANTITIES = {
    # data points, products
    TOPS: Quantity(
        {"top five to 5 %": 0.05, "top five to 2 %": 0.02},
        ((256, 16), (512, 16), (1024, 16), (1024, 32), (2048, 16), (2048, 32), (ALL, 16), (ALL, 32)),
        3,
    ),
    # data points, products
    TRACE: Quantity(
        {"trace to 5 %": 0.05}, ((256, 36), (512, 36), (1024, 36), (1024, 108), (4096, 108), (ALL, 108)), 6
    ),
    # data points, starts, products per start
    DENSITY: Quantity(
        {"density to .02": 0.02},
        ((256, 1, 32), (1024, 1, 32), (1024, 1, 64), (ALL, 1, 32), (ALL, 1, 64), (ALL, 1, 128), (ALL, 4, 64)),
        2,
    ),
}
# Settings of infhess instead: points per direction; points per batch and probes.
OWN_RUNGS: dict[str, tuple[tuple[int, ...], ...]] = {
    TOPS: ((128,), (256,), (512,), (1024,), (2048,), (4096,), (ALL,)),
    TRACE: ((16, 36), (32, 36), (64, 36), (128, 36), (256, 36), (256, 144), (256, 576)),
}


class Tool(NamedTuple):
    """The functions that compute each quantity, and the packages that they need."""

    calls: dict[str, Callable[..., Found]]
    packages: tuple[str, ...] = ()
    compiles: bool = False


def _of(*calls: Callable[..., Found]) -> dict[str, Callable[..., Found]]:
    """By quantity, in order."""
    return dict(zip(QUANTITIES, calls))


TOOLS = {
    INFHESS: Tool(_of(tools.infhess_top, tools.infhess_trace, tools.infhess_density)),
    CURVLINOPS: Tool(
        _of(tools.curvlinops_top, tools.curvlinops_trace, tools.curvlinops_density), ("curvlinops", "scipy")
    ),
    "hessian-eigenthings": Tool(
        _of(tools.eigenthings_top, tools.eigenthings_trace, tools.eigenthings_density), ("hessian_eigenthings",)
    ),
    # its density calls torch.eig, which PyTorch has removed
    "PyHessian": Tool(_of(tools.pyhessian_top, tools.pyhessian_trace), ("pyhessian",)),
    "matfree": Tool(_of(matfree_tools.top, matfree_tools.trace, matfree_tools.density), ("matfree", "jax"), True),
}


CNN, RTOL = "MNIST CNN", 0.002
TIGHT, ALL_POINTS = f"infhess.spectrum to rtol = {RTOL}", "Lanczos on all points, 32 products"


class Claim(NamedTuple):
    """A single call for the top five of a net, with rows of its own, and its setting."""

    net: str
    tool: str
    call: Callable[..., Found]
    rung: tuple[int, ...] = ()


CLAIMS = {
    # A tolerance so small that all of the data is read: infhess switches to Lanczos on it, compared with SciPy's.
    TIGHT: Claim(SIZES[0], INFHESS, lambda net, g: tools.infhess_tight(net, RTOL, g)),
    ALL_POINTS: Claim(SIZES[0], CURVLINOPS, lambda net, g: tools.curvlinops_top(net, net.points, 32, g)),
    # infhess at its defaults, Lanczos on parts of the data and on all of it.
    "infhess.spectrum": Claim(CNN, INFHESS, tools.infhess_top, (128,)),
    "Lanczos on 256 points": Claim(CNN, CURVLINOPS, tools.curvlinops_top, (256, 16)),
    "Lanczos on 1,000 points": Claim(CNN, CURVLINOPS, tools.curvlinops_top, (1000, 16)),
    "Lanczos on all points": Claim(CNN, CURVLINOPS, tools.curvlinops_top, (10_000, 16)),
}
TITLES = {CNN: "top five, MNIST CNN of 11,722 weights, 10,000 images", SIZES[0]: f"top five, {SIZES[0]}"}


def missing() -> dict[str, str]:
    """Tools whose packages are not installed, with these packages."""
    absent = {name: [p for p in tool.packages if not importlib.util.find_spec(p)] for name, tool in TOOLS.items()}
    return {name: ", ".join(packages) for name, packages in absent.items() if packages}


def jobs(seed: int, folder: Path, *, quick: bool = False) -> Iterator[Job]:
    """The truth about each net, then one job per installed tool and quantity; and the claims."""
    absent = missing()
    for net in QUICK if quick else SIZES:
        yield Job(Row(EXPERIMENT, net, TRUTH, seed), truth, (folder,))
        for quantity, wanted in QUANTITIES.items():
            for name, tool in TOOLS.items():
                if quantity in tool.calls and name not in absent:
                    first = next(iter(wanted.targets))
                    yield Job(Row(EXPERIMENT, net, f"{name}: {first}", seed), climbed, (name, quantity, folder))
    if not quick:
        yield Job(Row(EXPERIMENT, CNN, TRUTH, seed), truth, (folder,))
        for method, claim in CLAIMS.items():
            if claim.tool not in absent:
                yield Job(Row(EXPERIMENT, claim.net, method, seed), claimed, (folder,))


def truth(template: Row, folder: Path) -> list[Row]:
    """Seconds of products with all of the data; the loss is how far quadrature leaves the distribution undetermined."""
    name = template.problem
    seconds = processor_seconds(lambda: full_data(name, folder))
    exact, net = full_data(name, folder), timed_net(name)
    low, high = exact.measure.bounds(_places(exact))
    row = replace(template, data_points=net.points, products=math.prod(NETS[name].runs), seconds=seconds)
    return [replace(row, loss=float((high - low).max()), metric=float(net.size))]


def climbed(template: Row, tool: str, quantity: str, folder: Path) -> list[Row]:
    """For each target the first setting whose mean error is below it: CPU seconds, and the error as the loss.

    NaN seconds, and the last error, if no setting is enough.
    """
    exact, wanted = full_data(template.problem, folder), QUANTITIES[quantity]
    open_, rows = dict(wanted.targets), []
    for number, rung in enumerate(rungs(tool, quantity, timed_net(template.problem).points)):
        row, once = tried(template, TOOLS[tool], rung, exact, quantity, number)
        for target in [name for name, error in open_.items() if row.loss <= error]:
            rows.append(replace(row, method=f"{tool}: {target}"))
            if TOOLS[tool].compiles:
                rows.append(replace(row, method=f"{tool}{FIRST}: {target}", seconds=once))
            del open_[target]
        if not open_:
            break
    return rows + [replace(row, method=f"{tool}: {target}", seconds=math.nan) for target in open_]


def claimed(template: Row, folder: Path) -> list[Row]:
    """A few trials of one call."""
    exact, (_, _, call, rung) = full_data(template.problem, folder), CLAIMS[template.method]
    return [tried(template, Tool({TOPS: call}), rung, exact, TOPS, rung[0] if rung else 0)[0]]


def rungs(tool: str, quantity: str, points: int) -> list[tuple[int, ...]]:
    """The settings of a tool, cheapest first, for this much data."""
    others = QUANTITIES[quantity].rungs
    ladder = OWN_RUNGS.get(quantity, others) if tool == INFHESS else others
    return list(dict.fromkeys((min(first, points), *rest) for first, *rest in ladder))


def tried(
    template: Row, tool: Tool, rung: tuple[int, ...], exact: FullData, quantity: str, number: int
) -> tuple[Row, float]:
    """Median seconds and mean error of a few trials, and the seconds of the first, which alone compiles.

    With all of the data there is little to average over: one trial, and one more if the first one compiles.
    """
    net, found, seconds = timed_net(template.problem), list[Found](), []
    trials = min(QUANTITIES[quantity].trials, NETS[template.problem].trials)
    for trial in range(1 + tool.compiles if rung and rung[0] >= net.points else trials):
        g = torch.Generator().manual_seed(10**6 * (template.seed + 1) + 1000 * number + trial)
        seconds.append(processor_seconds(lambda: found.append(tool.calls[quantity](net, *rung, g))))  # noqa: B023
    error = mean(ERRORS[quantity](f.value, exact) for f in found)
    row = replace(template, products=found[-1].products, data_points=found[-1].points, loss=error)
    row = replace(row, seconds=median(seconds[1:] or seconds), metric=float(rung[0] if rung else net.points))
    return row, seconds[0]


def distance(found: Distribution, exact: FullData) -> float:
    """Kolmogorov's distance: how far a distribution function leaves what the moments of the true one allow.

    Points close to zero are ignored.
    """
    x = _places(exact)
    low, high = exact.measure.bounds(x)
    share = found(x)
    return float(torch.stack([share - high, low - share]).max().clamp(min=0))


def _places(exact: FullData) -> Tensor:
    """Half of the places where eigenvalues are dense, half evenly spaced, none close to zero."""
    nodes = exact.measure.nodes()[0].flatten()
    near = NEAR_ZERO * float(nodes.abs().max())
    beyond = nodes[nodes.abs() > near]
    even = torch.linspace(float(nodes.min()), float(nodes.max()), 60).to(nodes)
    some = torch.quantile(beyond, torch.linspace(0, 1, 60).to(nodes))
    x = torch.cat([some, even, torch.tensor([-1.01 * near, 1.01 * near]).to(nodes)]).sort().values
    return x[x.abs() > near]


ERRORS: dict[str, Callable[[Any, FullData], float]] = {
    TOPS: lambda values, exact: top_error(values, exact.top),
    TRACE: lambda value, exact: abs(value / exact.trace - 1),
    DENSITY: distance,
}


def summary(rows: Sequence[Row]) -> str:
    """Seconds by tool, one table per net; and of single calls."""
    mine = [r for r in rows if r.experiment == EXPERIMENT]
    nets = [name for name in dict.fromkeys(r.problem for r in mine) if name in (*SIZES, *QUICK)]
    text = "\n".join(_table(name, [r for r in mine if r.problem == name]) for name in nets)
    for net, title in TITLES.items():
        found = [r for r in mine if r.problem == net and r.method in CLAIMS]
        lines = [[r.method, f"{r.seconds:.2f}", f"{r.loss:.4f}"] for r in found]
        text += "\n" + markdown([[title, "processor seconds", "mean error"], *lines]) if lines else ""
    return text


def _table(name: str, rows: Sequence[Row]) -> str:
    cells = {tuple(r.method.split(": ")): r for r in rows if ": " in r.method}
    targets = [t for q in QUANTITIES.values() for t in q.targets]
    exact = cells.get(tuple(TRUTH.split(": ")))
    lines = [["processor seconds (error)", *targets]]
    tools = [name + more for name, tool in TOOLS.items() for more in ("", FIRST)[: 1 + tool.compiles]]
    lines += [[tool, *(_shown(cells, tool, t) for t in targets)] for tool in tools if any(k[0] == tool for k in cells)]
    about = "" if exact is None else (
        f"{name}: {exact.metric:,.0f} in all, {exact.data_points:,} data points. The truth is from {exact.products} products "
        f"with all of them, and is known to {exact.loss:.4f} in the distribution function.\n\n"
    )  # fmt: skip
    return about + markdown(lines)


def _shown(cells: dict[Any, Row], tool: str, target: str) -> str:
    row = cells.get((tool, target))
    if row is None:
        return "–"
    if math.isnan(row.seconds):
        return f"not reached ({row.loss:.3f})"
    compiled = {t.removesuffix(FIRST) for t, _ in cells if t.endswith(FIRST)}  # for these the first call counts
    others = [r.seconds for (t, goal), r in cells.items() if goal == target and r is not row and t not in compiled]
    best = tool not in compiled and row.seconds < min((s for s in others if s == s), default=0.0)
    text = f"{row.seconds:.{3 if row.seconds < 0.1 else 2}f} ({row.loss:.3f})"
    return f"**{text}**" if best else text
