"""Do the intervals hold? Seeded trials against the exact spectrum of the full-data matrix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import Tensor

from infhess.curvature import Products
from infhess.harness.jobs import Job
from infhess.harness.rows import Row
from infhess.harness.tables import markdown
from infhess.problems import CURVATURE, CurvatureProblem
from infhess.problems.shuffled import Shuffled
from infhess.spectra import largest, spectrum, trace

EXPERIMENT = "bench-curvature-coverage"
PROBLEMS = (
    "mnist-3v5/start", "mnist-3v5/near-optimum", "sarcos-natural", "mlp/start", "mlp/trained", "mlp-gauss-newton/trained",
)  # fmt: skip
BATCHES = (16, 64, 256, 1024)
TOP, LEVEL, TRIALS = 5, 0.95, 200
FRESH = (256, 1024)
FLAT, RULE, SCALARS = "flagged as unresolved", "rtol = 0.2", "trace and upper bound"
BANDS = {"eigenvalues": (0.93, 0.985), "along": (0.925, 0.97), RULE: (0.93, 1.0), FLAT: (0.98, 1.0)}


@lru_cache(maxsize=1)
def problem_and_truth(name: str) -> tuple[CurvatureProblem, Tensor]:
    """A problem and its exact matrix."""
    problem = CURVATURE[name]()
    return problem, problem.dense()


@dataclass(frozen=True)
class Trial:
    """What was covered, a relative error, and the cost; `beside` is another hit of the same trial."""

    hit: Tensor
    error: float
    products: int
    data_points: int
    beside: Tensor | None = None


def jobs(seed: int, trials: int, problems: tuple[str, ...] = PROBLEMS) -> Iterator[Job]:
    """One job per cell: problem × batch size in double precision, then one batch size in single, and the rules."""
    for name in problems:
        for batch in BATCHES:
            yield Job(Row(EXPERIMENT, name, "eigenvalues", seed, batch), eigenvalues, (trials, torch.float64))
        yield Job(Row(EXPERIMENT, name, "eigenvalues, float32", seed, 64), eigenvalues, (trials, torch.float32))
        for fresh in FRESH:
            yield Job(Row(EXPERIMENT, name, f"along, {fresh} fresh points", seed, 64), along, (trials, fresh))
        yield Job(Row(EXPERIMENT, name, RULE, seed, 64), stop_rule, (trials,))
        yield Job(Row(EXPERIMENT, name, SCALARS, seed, 64), scalars, (trials,))
    yield Job(Row(EXPERIMENT, "flat", FLAT, seed, 64), flat, (trials,))


def repeated(template: Row, trials: int, trial: Callable[[torch.Generator], Trial]) -> tuple[Row, list[Trial]]:
    """Mean coverage as the metric, mean relative error as the loss, cost and seconds per trial."""
    start, base = time.perf_counter(), 10**9 * (template.seed + 1) + 10**5 * template.batch_size
    found = [trial(torch.Generator().manual_seed(base + i)) for i in range(trials)]
    row = replace(
        template,
        data_points=sum(t.data_points for t in found) // trials,
        products=sum(t.products for t in found) // trials,
        seconds=(time.perf_counter() - start) / trials,
        loss=sum(t.error for t in found) / trials,
        metric=_share([t.hit for t in found]),
    )
    return row, found


def _share(hits: Sequence[Tensor]) -> float:
    return float(torch.stack([hit.double().mean() for hit in hits]).mean())


def _beside(row: Row, method: str, found: Sequence[Trial]) -> Row:
    return replace(row, method=method, metric=_share([t.beside for t in found if t.beside is not None]))


def _covered(truth: Tensor, interval: tuple[Tensor, Tensor]) -> Tensor:
    low, high = interval
    return (low.double() <= truth) & (truth <= high.double())


def _relative(values: Tensor, truth: Tensor) -> Tensor:
    return torch.abs((values.double() - truth) / truth)


def _top(H: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(H)
    return values.flip(0)[:TOP]


def eigenvalues(template: Row, trials: int, dtype: torch.dtype) -> list[Row]:
    """Coverage of the intervals for the top five eigenvalues."""
    problem, H = problem_and_truth(template.problem)
    truth = _top(H)

    def trial(g: torch.Generator) -> Trial:
        found = spectrum(problem.source(template.batch_size, g, dtype), TOP, generator=g)
        error = float(_relative(found.values, truth).mean())
        return Trial(_covered(truth, found.interval(LEVEL)), error, found.products, found.data_points)

    row, found = repeated(template, trials, trial)
    each = torch.stack([t.hit for t in found]).double().mean(0)
    bare = Row(*template.key)
    single = (replace(bare, method=f"{row.method}: λ{i + 1}", metric=float(c)) for i, c in enumerate(each))
    return [row, *single]


def along(template: Row, trials: int, fresh: int) -> list[Row]:
    """Coverage of the intervals for uᵀHu from fresh data."""
    problem, H = problem_and_truth(template.problem)
    batch, data = template.batch_size, (problem.x, problem.y)

    def trial(g: torch.Generator) -> Trial:
        found = spectrum(problem.source(batch, g), TOP, generator=g)
        truth = (found.vectors * (H @ found.vectors)).sum(0)
        measured = found.along(Shuffled(data, batch, g), points=fresh)
        error = float(_relative(measured.values, truth).mean())
        return Trial(_covered(truth, measured.interval(LEVEL)), error, measured.products, measured.data_points)

    return [repeated(template, trials, trial)[0]]


def stop_rule(template: Row, trials: int) -> list[Row]:
    """Share of trials in which the largest relative error stays below the tolerance; and coverage at the stop."""
    problem, H = problem_and_truth(template.problem)
    truth = _top(H)

    def trial(g: torch.Generator) -> Trial:
        found = spectrum(problem.source(template.batch_size, g), TOP, 0.2, generator=g)
        worst, covered = _relative(found.values, truth).max(), _covered(truth, found.interval(LEVEL))
        return Trial(worst <= 0.2, float(worst), found.products, found.data_points, covered)

    row, found = repeated(template, trials, trial)
    return [row, _beside(row, f"{RULE}: coverage at the stop", found)]


def scalars(template: Row, trials: int) -> list[Row]:
    """Coverage of the trace's interval, and of the 99 % upper bound on the largest eigenvalue."""
    problem, H = problem_and_truth(template.problem)
    top, total = torch.linalg.eigvalsh(H)[-1], float(torch.trace(H))

    def trial(g: torch.Generator) -> Trial:
        source = partial(problem.source, template.batch_size, g)
        estimate, bound = trace(source(), generator=g), largest(source(), generator=g)
        low, high = estimate.interval(LEVEL)
        hit, error = torch.tensor(low <= total <= high), abs(estimate.value / total - 1)
        return Trial(hit, error, estimate.products, estimate.data_points, top <= bound.upper(0.99))

    row, found = repeated(template, trials, trial)
    return [row, _beside(row, "largest: 99 % upper bound", found)]


def flat(template: Row, trials: int) -> list[Row]:
    """A flat spectrum, I of size 300 seen through Gaussian rows: nothing stands out, and the result must say so."""
    size, batch = 300, template.batch_size

    def trial(g: torch.Generator) -> Trial:
        def product(s: Tensor) -> Tensor:
            X = torch.randn(batch, size, generator=g, dtype=torch.float64)
            return X.mT @ (X @ s) / batch

        found = spectrum(Products(product, None, size), TOP, generator=g)
        return Trial((~found.resolved).any(), 0.0, found.products, 0)

    return [repeated(template, trials, trial)[0]]


def band(method: str) -> tuple[float, float] | None:
    """The goal for the coverage of a method."""
    if ":" in method:
        return None
    return next((wanted for start, wanted in BANDS.items() if method.startswith(start)), None)


def summary(rows: Sequence[Row]) -> str:
    """One line per problem and measure, one column per batch size; what lies outside of its band is marked."""
    cells = {(r.problem, r.method, r.batch_size): r.metric for r in rows if ": λ" not in r.method}
    order = {name: i for i, name in enumerate((*PROBLEMS, *CURVATURE))}
    lines = [["problem", "nominal 95 % intervals", *(f"batch {b}" for b in BATCHES), "band"]]
    measures = dict.fromkeys((p, m) for p, m, _ in cells)
    for problem, method in sorted(measures, key=lambda pm: order.get(pm[0], len(order))):
        wanted = band(method)
        shown = (_marked(cells.get((problem, method, batch)), wanted) for batch in BATCHES)
        lines.append([problem, method, *shown, f"{100 * wanted[0]:g}–{100 * wanted[1]:g}" if wanted else ""])
    return markdown(lines)


def _marked(coverage: float | None, wanted: tuple[float, float] | None) -> str:
    if coverage is None:
        return ""
    outside = wanted is not None and not wanted[0] <= round(coverage, 4) <= wanted[1]
    return f"{100 * coverage:.1f}" + (" ✗" if outside else "")
