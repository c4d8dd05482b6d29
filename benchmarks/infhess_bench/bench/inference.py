"""Time and memory of the inference loop, compared with the bound of memory bandwidth and with the paper's algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from infhess.curvature import Products
from infhess.posterior import CurvatureShaped, Posterior, Prior, condition
from infhess_bench.bench import loop
from infhess_bench.bench.loop import PRIOR, STEPS, Clocked, methods, paper_steps
from infhess_bench.experiments import plots
from infhess_bench.harness import Job, Row, Target, at_least, at_most, markdown, target_cells
from infhess_bench.harness.peak import printed_by
from infhess_bench.harness.timing import FLOAT, copied_bytes, copy_seconds, median_seconds

EXPERIMENT, REPEATS = "bench-inference", 5
SIZES = (10**4, 10**5, 10**6, 10**7)
COPY, COPY_S, PAPER = "copy of 16 columns", "copy of S", "paper's algorithm"
# Columns of N numbers that the last iteration has to move, given the order in which its parts depend on each other.
# paper: Sᵀg reads S; Y x and S x read both; Sᵀy and Yᵀs read both. curvature: Yᵀg, then Y x, then Yᵀy read Y.
# In addition, vectors of N numbers read or written: g (twice), s (written, normalised, stored), y (read, normalised, stored).
COLUMNS = {"paper": 5, "curvature": 3}
VECTORS = 10
Steps = Callable[[Products], Iterator[Any]]


def loop_seconds(steps: Steps, size: int, seed: int) -> list[float]:
    """Seconds of each iteration, excluding time inside the source."""
    clocked, seconds = Clocked(size, seed), []
    iterator = steps(clocked.source())
    start = time.perf_counter()
    for _ in iterator:
        now = time.perf_counter()
        seconds.append(now - start - clocked.seconds)
        clocked.seconds, start = 0.0, now
    return seconds


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """The loop at each size, then the paper's algorithm, and conditioning on tall columns."""
    sizes = SIZES[:2] if quick else SIZES
    for size in sizes:
        yield Job(Row(EXPERIMENT, f"N={size:.0e}", COPY, seed), loop_rows, (size,))
    size = sizes[-1] if quick else 10**6
    yield Job(Row(EXPERIMENT, f"{PAPER} N={size:.0e}", f"{PAPER}, 16 iterations", seed), paper_rows, (size,))
    size = sizes[-1] if quick else 2 * 10**6
    yield Job(Row(EXPERIMENT, f"condition N={size:.0e}", COPY_S, seed), condition_rows, (size,))


def loop_rows(template: Row, size: int) -> list[Row]:
    """The last iteration of each method compared with a copy and the bound, and the peak memory of the loop."""
    rows, copies, seed = [], [copy_seconds(size)], template.seed
    for name, steps in methods().items():
        seconds = median(median(loop_seconds(steps, size, seed)[-3:]) for _ in range(REPEATS))
        copies.append(copy_seconds(size))
        bandwidth = copied_bytes(size) / median(copies[-2:])
        bound = (COLUMNS[name] * (STEPS - 1) + VECTORS) * size * FLOAT / bandwidth
        rows += [
            replace(template, method=f"{name}: iteration / bound", seconds=seconds, metric=seconds / bound),
            replace(
                template, method=f"{name}: peak memory / N", metric=float(printed_by(loop.__name__, name, size, seed))
            ),
        ]
    return [replace(template, seconds=median(copies), metric=1.0), *rows]


def paper_rows(template: Row, size: int) -> list[Row]:
    """All 16 iterations and the final mean: infhess, and the paper's algorithm, which recomputes everything each time."""
    recomputed, seed = partial(paper_steps, steps=STEPS, prior=PRIOR), template.seed
    slow = median(sum(loop_seconds(recomputed, size, seed)) for _ in range(3))
    rows = [replace(template, seconds=slow, metric=1.0)]
    for name, steps in methods().items():
        fast = median(sum(loop_seconds(partial(_with_mean, steps), size, seed)) for _ in range(REPEATS))
        rows.append(replace(template, method=f"{name}: times faster", seconds=fast, metric=slow / fast))
    return rows


QUERIES: dict[str, tuple[Prior, Callable[[Posterior, Tensor], object]]] = {
    f"Isotropic: condition, mean.solve / {COPY_S}": (PRIOR, lambda posterior, v: posterior.mean.solve(v)),
    f"CurvatureShaped: condition, eigh(8) / {COPY_S}": (CurvatureShaped(0.1), lambda posterior, v: posterior.eigh(8)),
}


def condition_rows(template: Row, size: int) -> list[Row]:
    """A prior conditioned on 16 tall columns, and one query to the posterior, in copies of S."""
    generator = torch.Generator().manual_seed(template.seed)
    S = torch.randn(STEPS, size, generator=generator).mT
    Y = ((torch.rand(size, generator=generator) + 0.5) * S.mT).mT
    v, rows, copies = torch.randn(size, generator=generator), [], [copy_seconds(size)]
    for name, (prior, query) in QUERIES.items():
        seconds = median_seconds(lambda prior=prior, query=query: query(condition(prior, S, Y), v))  # type: ignore[misc]
        copies.append(copy_seconds(size))
        rows.append(replace(template, method=name, seconds=seconds, metric=seconds / median(copies[-2:])))
    return [replace(template, seconds=median(copies), metric=1.0), *rows]


def _with_mean(steps: Steps, source: Products) -> Iterator[Any]:
    """The same steps; at the last one the posterior mean is also computed."""
    for state in steps(source):
        if state.step == STEPS - 1:
            _ = state.posterior.mean
        yield state


def targets(rows: Sequence[Row]) -> list[Target]:
    """The relevant ratios, from the rows."""
    value = {(r.problem, r.method): r for r in rows}
    found = []
    for name in COLUMNS:
        for size in SIZES[1:]:  # below, a column is smaller than the allocator's granularity
            problem = f"N={size:.0e}"
            row, memory = (value.get((problem, f"{name}: {what}")) for what in ("iteration / bound", "peak memory / N"))
            if row and size >= 10**6:
                found.append(at_most(f"{name}: iteration / bound, {problem}", row.metric, 2.0))
            if memory:
                found.append(at_most(f"{name}: peak memory in columns of N, {problem}", memory.metric, 2 * STEPS + 8))
        found += _growth(value, name)
    fast, copies = ([r for r in rows if r.method.endswith(end)] for end in ("times faster", f"/ {COPY_S}"))
    found += [at_least(f"{row.method}, {row.problem}", row.metric, 8) for row in fast]
    return found + [at_most(f"{row.method}, {row.problem[10:]}", row.metric, 20) for row in copies]


def _growth(value: dict[tuple[str, str], Row], name: str) -> Iterator[Target]:
    """Growth of an iteration from N = 1e6 to 1e7, relative to that of a plain copy."""
    keys = [(f"N={size:.0e}", method) for method in (f"{name}: iteration / bound", COPY) for size in SIZES[-2:]]
    if all(key in value for key in keys):
        small, large, copy_small, copy_large = (value[key].seconds for key in keys)
        ratio = (large / small) / (copy_large / copy_small)
        yield at_most(f"{name}: growth from N = 1e6 to 1e7 / growth of a copy", ratio, 1.2)


def summary(rows: Sequence[Row]) -> str:
    """The targets as a Markdown table."""
    return markdown(target_cells(targets(rows)))


def figure(rows: Sequence[Row], path: Path) -> Path:
    """Seconds of an iteration against N, together with a copy."""
    fig, ax = plots.figure()
    for method, label, colour in (
        ("curvature: iteration / bound", "default, 16th iteration", plots.BLUE),
        ("paper: iteration / bound", "of the paper (fast form), 16th iteration", plots.ORANGE),
        (COPY, COPY, plots.GREY),
    ):
        points = sorted((float(r.problem[2:]), r.seconds) for r in rows if r.method == method)
        ax.plot(*zip(*points), "o-", color=colour, label=label)
    ax.set(xscale="log", yscale="log", xlabel="N", ylabel="seconds")
    ax.set_title("An iteration of inference is a few passes over memory", loc="left")
    ax.legend(frameon=False)
    return plots.save(fig, path)
