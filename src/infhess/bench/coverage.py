"""Do the intervals hold? Seeded trials against the exact spectrum of the full-data matrix."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from infhess.curvature import Products
from infhess.experiments.pieces import Piece
from infhess.experiments.rows import Row
from infhess.problems import CURVATURE, CurvatureProblem
from infhess.problems.shuffled import Shuffled
from infhess.spectra import Spectrum, largest, spectrum, trace

EXPERIMENT = "bench-curvature-coverage"
PROBLEMS = (
    "mnist-3v5/start",
    "mnist-3v5/near-optimum",
    "sarcos-natural",
    "mlp/start",
    "mlp/trained",
    "mlp-gauss-newton/trained",
)
BATCHES = (16, 64, 256, 1024)
TOP, LEVEL, TRIALS = 5, 0.95, 200
FRESH = (256, 1024)


@lru_cache(maxsize=1)
def problem_and_truth(name: str) -> tuple[CurvatureProblem, Tensor]:
    """A problem and its exact matrix."""
    problem = CURVATURE[name]()
    return problem, problem.dense()


def pieces(seed: int, trials: int, problems: tuple[str, ...] = PROBLEMS) -> Iterator[Piece]:
    """A cell a piece: problem × batch size in double precision, then one batch size in single, and the rules."""
    for name in problems:
        for batch in BATCHES:
            yield _piece(name, "eigenvalues", seed, batch, eigenvalues, (name, batch, seed, trials, "float64"))
        yield _piece(name, "eigenvalues, float32", seed, 64, eigenvalues, (name, 64, seed, trials, "float32"))
        for fresh in FRESH:
            yield _piece(name, f"along, {fresh} fresh points", seed, 64, along, (name, 64, fresh, seed, trials))
        yield _piece(name, "rtol = 0.2", seed, 64, stop_rule, (name, 64, seed, trials))
        yield _piece(name, "trace and upper bound", seed, 64, scalars, (name, 64, seed, trials))
    yield _piece("flat", "flagged as unresolved", seed, 64, flat, (64, seed, trials))


def _piece(name: str, method: str, seed: int, batch: int, call: object, arguments: tuple[object, ...]) -> Piece:
    key = (EXPERIMENT, name, method, seed, batch)
    return Piece(key, f"{name}, batch {batch}: {method}", call, arguments)  # type: ignore[arg-type]


def _generator(seed: int, batch: int, trial: int) -> torch.Generator:
    return torch.Generator().manual_seed(10**9 * (seed + 1) + 10**5 * batch + trial)


def _covered(truth: Tensor, interval: tuple[Tensor, Tensor]) -> Tensor:
    low, high = interval
    return (low.double() <= truth) & (truth <= high.double())


def _row(
    name: str,
    method: str,
    seed: int,
    batch: int,
    hits: list[Tensor],
    errors: list[float],
    cost: tuple[int, int],
    start: float,
) -> Row:
    """Mean coverage as the metric, mean relative error as the loss, cost and seconds a trial."""
    share = float(torch.stack([h.double().mean() for h in hits]).mean())
    n, seconds = len(hits), time.perf_counter() - start
    return Row(
        EXPERIMENT, name, method, seed, batch, cost[1] // n, cost[0] // n, seconds / n,
        loss=sum(errors) / max(len(errors), 1), metric=share,
    )  # fmt: skip


def _relative(found: Spectrum, truth: Tensor) -> float:
    return float(((found.values.double() - truth) / truth).abs().mean())


def eigenvalues(name: str, batch: int, seed: int, trials: int, dtype: str) -> list[Row]:
    """Coverage of the intervals for the top five eigenvalues."""
    problem, H = problem_and_truth(name)
    truth, start = torch.linalg.eigvalsh(H).flip(0)[:TOP], time.perf_counter()
    hits, errors, products, points = [], [], 0, 0
    for trial in range(trials):
        g = _generator(seed, batch, trial)
        found = spectrum(problem.source(batch, g, getattr(torch, dtype)), TOP, generator=g)
        hits.append(_covered(truth, found.interval(LEVEL)))
        errors.append(_relative(found, truth))
        products, points = products + found.products, points + found.data_points
    method = "eigenvalues" if dtype == "float64" else f"eigenvalues, {dtype}"
    whole = _row(name, method, seed, batch, hits, errors, (products, points), start)
    each = torch.stack(hits).double().mean(0)
    return [
        whole,
        *(Row(EXPERIMENT, name, f"{method}: λ{i + 1}", seed, batch, metric=float(c)) for i, c in enumerate(each)),
    ]


def along(name: str, batch: int, fresh: int, seed: int, trials: int) -> list[Row]:
    """Coverage of the intervals for uᵀHu from fresh data."""
    problem, H = problem_and_truth(name)
    start, hits, errors, products, points = time.perf_counter(), [], [], 0, 0
    for trial in range(trials):
        g = _generator(seed, batch, trial)
        found = spectrum(problem.source(batch, g), TOP, generator=g)
        truth = (found.vectors * (H @ found.vectors)).sum(0)
        measured = found.along(Shuffled((problem.x, problem.y), batch, g), points=fresh)
        hits.append(_covered(truth, measured.interval(LEVEL)))
        errors.append(float(((measured.values - truth) / truth).abs().mean()))
        products, points = products + measured.products, points + measured.data_points
    return [_row(name, f"along, {fresh} fresh points", seed, batch, hits, errors, (products, points), start)]


def stop_rule(name: str, batch: int, seed: int, trials: int) -> list[Row]:
    """Share of trials in which the largest relative error stays below the tolerance; and coverage at the stop."""
    problem, H = problem_and_truth(name)
    truth, start = torch.linalg.eigvalsh(H).flip(0)[:TOP], time.perf_counter()
    within, hits, errors, products, points = [], [], [], 0, 0
    for trial in range(trials):
        g = _generator(seed, batch, trial)
        found = spectrum(problem.source(batch, g), TOP, 0.2, generator=g)
        worst = ((found.values - truth) / truth).abs().max()
        within.append((worst <= 0.2)[None])
        errors.append(float(worst))
        hits.append(_covered(truth, found.interval(LEVEL)))
        products, points = products + found.products, points + found.data_points
    cost = (products, points)
    return [
        _row(name, "rtol = 0.2", seed, batch, within, errors, cost, start),
        _row(name, "rtol = 0.2: coverage at the stop", seed, batch, hits, errors, cost, start),
    ]


def scalars(name: str, batch: int, seed: int, trials: int) -> list[Row]:
    """Coverage of the trace's interval, and of the 99 % upper bound on the largest eigenvalue."""
    problem, H = problem_and_truth(name)
    top, total, start = torch.linalg.eigvalsh(H)[-1], torch.trace(H), time.perf_counter()
    traces, bounds, errors, products, points = [], [], [], 0, 0
    for trial in range(trials):
        g = _generator(seed, batch, trial)
        estimate, bound = trace(problem.source(batch, g), generator=g), largest(problem.source(batch, g), generator=g)
        low, high = estimate.interval(LEVEL)
        traces.append(torch.tensor([low <= float(total) <= high]))
        bounds.append(torch.tensor([float(top) <= bound.upper(0.99)]))
        errors.append(abs(estimate.value / float(total) - 1))
        products, points = products + estimate.products, points + estimate.data_points
    cost = (products, points)
    return [
        _row(name, "trace and upper bound", seed, batch, traces, errors, cost, start),
        _row(name, "largest: 99 % upper bound", seed, batch, bounds, errors, cost, start),
    ]


def flat(batch: int, seed: int, trials: int) -> list[Row]:
    """A flat spectrum, I of size 300 seen through Gaussian rows: nothing stands out, and that must be said."""
    size, start, hits, products = 300, time.perf_counter(), [], 0
    for trial in range(trials):
        g = _generator(seed, batch, trial)

        def product(s: Tensor, g: torch.Generator = g) -> Tensor:
            X = torch.randn(batch, size, generator=g, dtype=torch.float64)
            return X.mT @ (X @ s) / batch

        found = spectrum(Products(product, None, size), TOP, generator=g)
        hits.append((~found.resolved).any()[None])
        products += found.products
    return [_row("flat", "flagged as unresolved", seed, batch, hits, [], (products, 0), start)]


BANDS = {
    "eigenvalues": (0.93, 0.985),
    "along": (0.925, 0.97),
    "rtol = 0.2": (0.93, 1.0),
    "flagged": (0.98, 1.0),
}


def band(method: str) -> tuple[float, float] | None:
    """What the coverage of a method is meant to lie in."""
    if ":" in method:
        return None
    return next((wanted for start, wanted in BANDS.items() if method.startswith(start)), None)


def markdown(rows: Sequence[Row]) -> str:
    """A line a problem and measure, a column a batch size; what lies outside of its band is marked."""
    cells = {(r.problem, r.method, r.batch_size): r for r in rows if ": λ" not in r.method}
    lines = ["| problem | nominal 95 % intervals | " + " | ".join(f"batch {b}" for b in BATCHES) + " | band |"]
    lines.append("|---" * (len(BATCHES) + 3) + "|")
    order = {name: i for i, name in enumerate((*PROBLEMS, *CURVATURE))}
    for problem, method in sorted(
        dict.fromkeys((p, m) for p, m, _ in cells), key=lambda pm: order.get(pm[0], len(order))
    ):
        wanted, shown = band(method), []
        for batch in BATCHES:
            row = cells.get((problem, method, batch))
            outside = row is not None and wanted is not None and not wanted[0] <= round(row.metric, 4) <= wanted[1]
            shown.append("" if row is None else f"{100 * row.metric:.1f}" + (" ✗" if outside else ""))
        limits = f"{100 * wanted[0]:g}–{100 * wanted[1]:g}" if wanted else ""
        lines.append(f"| {problem} | {method} | {' | '.join(shown)} | {limits} |")
    return "\n".join(lines) + "\n"
