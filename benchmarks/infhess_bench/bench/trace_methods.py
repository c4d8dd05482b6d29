"""Which trace estimator is best if products come from mini-batches: the measurement behind `infhess.trace`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import mean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_source import BatchSource
from infhess.spectra import trace
from infhess_bench.bench.coverage import truth_of
from infhess_bench.harness import Job, Row, markdown, processor_seconds

EXPERIMENT = "bench-curvature-trace"
PROBLEMS = ("digits-mlp", "mlp/start", "mlp/trained", "mlp-gauss-newton/trained")
BATCHES, TRIALS = (16, 64, 256), 40
PROBES = 36


class Guess(NamedTuple):
    """An estimate, and its 95 % interval if it has one."""

    value: float
    interval: tuple[float, float] = (math.nan, math.nan)


Method = Callable[[BatchSource, torch.Generator], Guess]


def measured_by_infhess(source: BatchSource, g: torch.Generator, **options: Any) -> Guess:
    """`infhess.trace`; without a sketch it is Hutchinson's estimator: random signs, a fresh batch for each."""
    found = trace(source, generator=g, **options)
    return Guess(found.value, found.interval(0.95))


def signs(source: BatchSource, number: int, g: torch.Generator) -> Tensor:
    """Random signs, as columns."""
    return torch.randn(source.size, number, generator=g, dtype=torch.float64).sign().to(source.like)


def hutch(source: BatchSource, g: torch.Generator, *, one_batch: bool) -> Guess:
    """Hutch++ (Meyer, Musco, Musco & Woodruff 2021): a third of the products each for sketch, projection and rest.

    All products are with one batch, or each has its own.
    """
    local = source.local(source.draw()) if one_batch else None

    def products(S: Tensor) -> Tensor:
        return source.block(local, S) if local else torch.stack([source.matvec(s) for s in S.mT], 1)

    Q = torch.linalg.qr(products(signs(source, PROBES // 3, g))).Q
    Z = signs(source, PROBES // 3, g)
    Z = Z - Q @ (Q.mT @ Z)
    return Guess(float((Q * products(Q)).sum() + (Z * products(Z)).sum() / Z.shape[1]))


def xtrace_one_batch(source: BatchSource, g: torch.Generator) -> Guess:
    """XTrace (Epperly, Tropp & Webber 2024) on one batch: each probe uses the others as the sketch."""
    local, W = source.local(source.draw()), signs(source, PROBES // 2, g)
    Y = source.block(local, W)
    Q, R = torch.linalg.qr(Y)
    Z = source.block(local, Q)
    S = torch.linalg.inv(R).mT
    S = S / torch.linalg.vector_norm(S, dim=0)  # column i: the direction of Q that the other probes do not reach
    H, V = Q.mT @ Z, Q.mT @ W
    X = V - S * (S * V).sum(0)  # probes within the sketch of the others
    T = Z.mT @ W
    inside = torch.trace(H) - (S * (H @ S)).sum(0)
    rest = (W * Y).sum(0) - 2 * (X * T).sum(0) + (X * (H @ X)).sum(0)
    return Guess(float((inside + rest).mean()))


METHODS: dict[str, Method] = {
    "infhess.trace": measured_by_infhess,
    "Hutchinson, 36 fresh batches": partial(measured_by_infhess, sketch=0),
    "Hutch++, 36 fresh batches": partial(hutch, one_batch=False),
    "Hutch++, 36 products with one batch": partial(hutch, one_batch=True),
    "XTrace, 36 products with one batch": xtrace_one_batch,
}


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """One job per problem, batch size and method."""
    for problem, batch, method in product(PROBLEMS[:1] if quick else PROBLEMS, BATCHES, METHODS):
        yield Job(Row(EXPERIMENT, problem, method, seed, batch), measured, (TRIALS,))


def measured(template: Row, trials: int) -> list[Row]:
    """Root mean square of the relative error as the loss, coverage of the interval as the metric, and the cost per trial."""
    truth, batch = truth_of(template.problem), template.batch_size
    total, found, seconds = float(torch.trace(truth.H)), list[Guess](), []
    for trial in range(trials):
        g = torch.Generator().manual_seed(10**8 * (template.seed + 1) + 10**4 * batch + trial)
        source = truth.problem.source(batch, g, torch.float32)
        seconds.append(processor_seconds(lambda: found.append(METHODS[template.method](source, g))))  # noqa: B023
    error = mean((f.value / total - 1) ** 2 for f in found) ** 0.5
    covered = [f.interval[0] <= total <= f.interval[1] for f in found if not math.isnan(f.interval[0])]
    row = replace(template, data_points=source.data_points, products=source.products, seconds=median(seconds))
    return [replace(row, loss=error, metric=mean(covered) if covered else math.nan)]


def summary(rows: Sequence[Row]) -> str:
    """Errors and seconds, one line per problem and method."""
    cells = {(r.problem, r.method, r.batch_size): r for r in rows if r.experiment == EXPERIMENT}
    lines = [["problem", "method", *(f"batch {b}: error, s, coverage" for b in BATCHES)]]
    for problem, method in dict.fromkeys((p, m) for p, m, _ in cells):
        shown = (cells.get((problem, method, b)) for b in BATCHES)
        lines.append([problem, method, *("–" if r is None else _shown(r) for r in shown)])
    return markdown(lines)


def _shown(row: Row) -> str:
    covered = "" if math.isnan(row.metric) else f", {100 * row.metric:.0f} %"
    return f"{row.loss:.3f}, {row.seconds:.2f}{covered}"
