"""Do the bounds of `density` hold? Trials against known spectra, and against the exact spectra of two nets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess.spectra import density
from infhess_bench.bench.coverage import marked, truth_of
from infhess_bench.harness import Job, Row, markdown
from infhess_bench.problems import CURVATURE

EXPERIMENT = "bench-density-coverage"
SIZE, LEVEL, BAND = 600, 0.95, (0.93, 0.985)
NETS = ("digits-mlp", "mlp/trained")
EACH, ALL_AT_ONCE, WIDTH = NAMES = ("at each x", "at all x at once", "mean half-width at each x")
PARTS = ("all data", "a part of the data")
BATCH, POINTS = 64, 512
STARTS = {"digits-mlp": 1}  # fewer than by default, so that there is noise of starts to cover


def like_a_net() -> Tensor:
    """Nine outliers, a bulk mostly close to zero, and a tenth below zero."""
    bulk = torch.logspace(-5, -1, SIZE - 9 - SIZE // 10, dtype=torch.float64)
    below = -torch.logspace(-5, -1.5, SIZE // 10, dtype=torch.float64)
    return torch.cat([torch.linspace(1, 3, 9, dtype=torch.float64), bulk, below])


KNOWN: dict[str, Callable[[], Tensor]] = {
    "power law": lambda: torch.arange(1, SIZE + 1, dtype=torch.float64) ** -1.2,
    "like a net": like_a_net,
    "five values": lambda: torch.arange(5, dtype=torch.float64).repeat_interleave(SIZE // 5),
}


class Spectral(NamedTuple):
    """A matrix, its eigenvalues, ascending, and places at which its distribution function is compared."""

    A: Tensor
    values: Tensor
    x: Tensor

    @property
    def shares(self) -> Tensor:
        """The share of eigenvalues at or below each place."""
        return torch.searchsorted(self.values, self.x, right=True).double() / len(self.values)


@lru_cache(maxsize=1)
def exact(name: str) -> Spectral:
    """A case by name; a known spectrum has a random basis."""
    if name in KNOWN:
        values = KNOWN[name]().sort().values
        Q = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
        A = (Q * values) @ Q.mT
    else:
        A = truth_of(name).H
        values = torch.linalg.eigvalsh(A)
    return Spectral(A, values, places(values))


def places(values: Tensor) -> Tensor:
    """Places where eigenvalues are dense, and evenly over their range; each between two eigenvalues."""
    quantiles = torch.quantile(values, torch.linspace(0.04, 0.96, 10).double())
    even = torch.linspace(float(values.min()), float(values.max()), 10).double()[1:-1]
    near = torch.cat([quantiles, even])
    above = torch.searchsorted(values, near, right=True).clamp(1, len(values) - 1)
    return ((values[above - 1] + values[above]) / 2).sort().values


def jobs(seed: int, trials: int, *, quick: bool = False) -> Iterator[Job]:
    """All data for each case; a part of it for nets."""
    for name in (*KNOWN, *(() if quick else NETS)):
        for part in PARTS[: 1 if name in KNOWN else 2]:
            yield Job(Row(EXPERIMENT, name, f"{part}: {EACH}", seed), repeated, (trials, part))


def repeated(template: Row, trials: int, part: str) -> list[Row]:
    """The share of places and trials that bounds cover, the share of trials that the joint band covers, and the width."""
    truth, start, found = exact(template.problem), time.perf_counter(), []
    shares, x = truth.shares, truth.x
    for trial in range(trials):
        g = torch.Generator().manual_seed(10**9 * (template.seed + 1) + trial)
        result = measured(template.problem, part, g)
        bounds = result._law.bounds(x)  # once for both: each place takes an eigenproblem
        each, joint = result._law.interval(*bounds, LEVEL), result._law.band(*bounds, LEVEL)
        hits = [(low - 1e-9 <= shares) & (shares <= high + 1e-9) for low, high in (each, joint)]
        found.append((float(hits[0].double().mean()), float(hits[1].all()), float((each[1] - each[0]).mean()) / 2))
    row = replace(template, data_points=result.data_points, products=result.products)
    row = replace(row, seconds=(time.perf_counter() - start) / trials)
    return [replace(row, method=f"{part}: {name}", metric=mean(column)) for name, column in zip(NAMES, zip(*found))]


def measured(name: str, part: str, g: torch.Generator) -> Any:
    """One trial: of the exact matrix, which is all of the data, or from mini-batches of a part of it."""
    if part == PARTS[0]:
        return density(exact(name).A, starts=STARTS.get(name), generator=g)
    source = truth_of(name).problem.source(BATCH, g, torch.float32)
    return density(source, points=POINTS, starts=STARTS.get(name), generator=g)


def summary(rows: Sequence[Row]) -> str:
    """One line per spectrum and part of the data; values outside their range are marked."""
    cells = {(r.problem, *r.method.split(": ")): r.metric for r in rows if r.experiment == EXPERIMENT}
    lines = [["spectrum", "read", f"covered {EACH} (93–98.5)", f"covered {ALL_AT_ONCE} (≥ 93)", WIDTH]]
    for problem, part in dict.fromkeys((p, part) for p, part, _ in cells):
        each, joint, width = (cells[problem, part, name] for name in NAMES)
        size = SIZE if problem in KNOWN else len(CURVATURE[problem]().w)
        shown = marked(each, BAND), marked(joint, (BAND[0], 1.0)), f"{width:.3f}"
        lines.append([f"{problem}, N = {size}", part, *shown])
    return markdown(lines)
