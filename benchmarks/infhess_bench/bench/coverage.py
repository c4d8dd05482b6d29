"""Do the intervals hold? Seeded trials against the exact spectrum of the full-data matrix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess.curvature import Products
from infhess.spectra import largest, spectrum, trace
from infhess_bench.harness import Job, Row, markdown
from infhess_bench.problems import CURVATURE, CurvatureProblem, Shuffled

EXPERIMENT = "bench-curvature-coverage"
QUICK = ("digits-logistic", "digits-mlp")  # need no data folder
PROBLEMS = (
    "mnist-3v5/start", "mnist-3v5/near-optimum", "sarcos-natural", "mlp/start", "mlp/trained", "mlp-gauss-newton/trained",
)  # fmt: skip
BATCHES = (16, 64, 256, 1024)
TOP, LEVEL, TRIALS = 5, 0.95, 200
FRESH = (256, 1024)
FLAT, RULE, SCALARS = "flagged as unresolved", "rtol = 0.2", "trace and upper bound"
BANDS = {"eigenvalues": (0.93, 0.985), "along": (0.925, 0.97), RULE: (0.93, 1.0), FLAT: (0.98, 1.0)}


class Truth(NamedTuple):
    """A problem, its exact matrix, and its eigenvalues, descending."""

    problem: CurvatureProblem
    H: Tensor
    values: Tensor


@lru_cache(maxsize=1)
def truth_of(name: str) -> Truth:
    """The truth by name, cached for the next job in this process."""
    problem = CURVATURE[name]()
    H = problem.dense()
    return Truth(problem, H, torch.linalg.eigvalsh(H).flip(0))


class Trial(NamedTuple):
    """A result with its cost, what it covered, and its relative error; `beside` is a second hit of the same trial."""

    found: Any
    hit: Tensor
    error: float = 0.0
    beside: Tensor | None = None


def jobs(seed: int, trials: int, *, quick: bool = False) -> Iterator[Job]:
    """One job per cell: problem × batch size in double precision, then one batch size in single, and the stop rules."""
    for name in QUICK if quick else PROBLEMS:
        cells: list[tuple[str, int, Callable[..., Trial]]] = [("eigenvalues", b, eigenvalues) for b in BATCHES]
        cells += [("eigenvalues, float32", 64, partial(eigenvalues, dtype=torch.float32))]
        cells += [(f"along, {fresh} fresh points", 64, partial(along, fresh=fresh)) for fresh in FRESH]
        for method, batch, trial in [*cells, (RULE, 64, stop_rule), (SCALARS, 64, scalars)]:
            yield Job(Row(EXPERIMENT, name, method, seed, batch), repeated, (trials, trial))
    yield Job(Row(EXPERIMENT, "flat", FLAT, seed, 64), repeated, (trials, flat))


def repeated(template: Row, trials: int, trial: Callable[..., Trial]) -> list[Row]:
    """Mean coverage as the metric, mean relative error as the loss, cost and seconds per trial; second hits as further rows."""
    truth = truth_of(template.problem) if template.problem in CURVATURE else None
    start, base = time.perf_counter(), 10**9 * (template.seed + 1) + 10**5 * template.batch_size
    found = [trial(truth, template.batch_size, torch.Generator().manual_seed(base + i)) for i in range(trials)]
    points, products = (sum(getattr(t.found, n) for t in found) // trials for n in ("data_points", "products"))
    row = replace(template, data_points=points, products=products, seconds=(time.perf_counter() - start) / trials)
    row = replace(row, loss=sum(t.error for t in found) / trials, metric=_share([t.hit for t in found]))
    beside = [t.beside for t in found if t.beside is not None]
    if beside:
        return [row, replace(row, method=BESIDE[template.method], metric=_share(beside))]
    if not template.method.startswith("eigenvalues"):
        return [row]
    each = torch.stack([t.hit for t in found]).double().mean(0).tolist()
    return [row, *(replace(Row(*row.key), method=f"{row.method}: λ{i}", metric=c) for i, c in enumerate(each, 1))]


BESIDE = {RULE: f"{RULE}: coverage at the stop", SCALARS: "largest: 99 % upper bound"}


def _share(hits: Sequence[Tensor]) -> float:
    return float(torch.stack([hit.double().mean() for hit in hits]).mean())


def _covered(truth: Tensor, interval: tuple[Tensor, Tensor]) -> Tensor:
    low, high = interval
    return (low.double() <= truth) & (truth <= high.double())


def _relative(values: Tensor, truth: Tensor) -> Tensor:
    return torch.abs((values.double() - truth) / truth)


def eigenvalues(truth: Truth, batch: int, g: torch.Generator, dtype: torch.dtype = torch.float64) -> Trial:
    """Coverage of the intervals for the top five eigenvalues."""
    found, exact = spectrum(truth.problem.source(batch, g, dtype), TOP, generator=g), truth.values[:TOP]
    return Trial(found, _covered(exact, found.interval(LEVEL)), float(_relative(found.values, exact).mean()))


def along(truth: Truth, batch: int, g: torch.Generator, fresh: int) -> Trial:
    """Coverage of the intervals for uᵀHu from fresh data."""
    problem, H, _ = truth
    found = spectrum(problem.source(batch, g), TOP, generator=g)
    exact = (found.vectors * (H @ found.vectors)).sum(0)
    measured = found.along(Shuffled((problem.x, problem.y), batch, g), points=fresh)
    return Trial(measured, _covered(exact, measured.interval(LEVEL)), float(_relative(measured.values, exact).mean()))


def stop_rule(truth: Truth, batch: int, g: torch.Generator) -> Trial:
    """Whether the largest relative error stays below the tolerance; and coverage at the stop."""
    found, exact = spectrum(truth.problem.source(batch, g), TOP, 0.2, generator=g), truth.values[:TOP]
    worst = _relative(found.values, exact).max()
    return Trial(found, worst <= 0.2, float(worst), _covered(exact, found.interval(LEVEL)))


def scalars(truth: Truth, batch: int, g: torch.Generator) -> Trial:
    """Coverage of the trace's interval, and of the 99 % upper bound on the largest eigenvalue."""
    total, source = float(torch.trace(truth.H)), partial(truth.problem.source, batch, g)
    found, bound = trace(source(), generator=g), largest(source(), generator=g)
    low, high = found.interval(LEVEL)
    hit, above = torch.tensor(low <= total <= high), truth.values[0] <= bound.upper(0.99)
    return Trial(found, hit, abs(found.value / total - 1), above)


def flat(_: None, batch: int, g: torch.Generator, size: int = 300) -> Trial:
    """A flat spectrum, I of size 300 seen through Gaussian rows: nothing stands out, and the result must say so."""

    def product(s: Tensor) -> Tensor:
        X = torch.randn(batch, size, generator=g, dtype=torch.float64)
        return X.mT @ (X @ s) / batch

    found = spectrum(Products(product, None, size), TOP, generator=g)
    return Trial(found, (~found.resolved).any())


def band(method: str) -> tuple[float, float] | None:
    """The target range for the coverage of a method."""
    return None if ":" in method else next((b for start, b in BANDS.items() if method.startswith(start)), None)


def summary(rows: Sequence[Row]) -> str:
    """One line per problem and measure, one column per batch size; values outside their range are marked."""
    cells = {(r.problem, r.method, r.batch_size): r.metric for r in rows if ": λ" not in r.method}
    order = {name: i for i, name in enumerate((*PROBLEMS, *CURVATURE))}
    lines = [["problem", "nominal 95 % intervals", *(f"batch {b}" for b in BATCHES), "band"]]
    measures = dict.fromkeys((p, m) for p, m, _ in cells)
    for problem, method in sorted(measures, key=lambda pm: order.get(pm[0], len(order))):
        wanted = band(method)
        shown = (marked(cells.get((problem, method, batch)), wanted) for batch in BATCHES)
        lines.append([problem, method, *shown, f"{100 * wanted[0]:g}–{100 * wanted[1]:g}" if wanted else ""])
    return markdown(lines)


def marked(coverage: float | None, wanted: tuple[float, float] | None) -> str:
    """Coverage in percent, marked if it lies outside its range."""
    if coverage is None:
        return ""
    outside = wanted is not None and not wanted[0] <= round(coverage, 4) <= wanted[1]
    return f"{100 * coverage:.1f}" + (" ✗" if outside else "")
