"""Time and memory of the inference loop, beside what memory bandwidth allows and beside the printed algorithm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infhess.bench.loop import FLOAT, PRIOR, STEPS, Clocked, methods
from infhess.bench.memory import peak_in_new_process
from infhess.bench.printed import printed_steps
from infhess.curvature import Products
from infhess.experiments import plots
from infhess.experiments.pieces import Piece
from infhess.experiments.rows import Row
from infhess.posterior import CurvatureShaped, Posterior, Prior, condition

EXPERIMENT, REPEATS = "bench-inference", 5
SIZES = (10**4, 10**5, 10**6, 10**7)
# Columns of N numbers that the last iteration cannot avoid moving, by the order in which its parts depend on each other.
# paper: Sᵀg reads S; Y x and S x read both; Sᵀy and Yᵀs read both. curvature: Yᵀg, then Y x, then Yᵀy read Y.
# Vectors of N numbers besides, read or written: g (twice), s (written, normalised, stored), y (read, normalised, stored).
COLUMNS = {"paper": 5, "curvature": 3}
VECTORS = 10


def loop_seconds(steps: Callable[[Products], Iterator[Any]], size: int, seed: int) -> list[float]:
    """Seconds of each iteration, those inside the source taken off."""
    clocked, seconds = Clocked(size, seed), []
    iterator = steps(clocked.source())
    start = time.perf_counter()
    for _ in iterator:
        now = time.perf_counter()
        seconds.append(now - start - clocked.seconds)
        clocked.seconds, start = 0.0, now
    return seconds


def copy_seconds(size: int) -> float:
    """Seconds to copy STEPS columns of `size` float32 numbers."""
    source = torch.rand(STEPS, size)
    target = torch.empty_like(source)
    return repeated(lambda: target.copy_(source))


def copy_bandwidth(size: int) -> float:
    """Bytes a second that a copy of such columns moves: each number is read once and written once."""
    return 2 * STEPS * size * FLOAT / copy_seconds(size)


def repeated(f: Callable[[], object]) -> float:
    """The median of several timings, after a warm-up."""
    f()
    seconds = []
    for _ in range(2 * REPEATS + 1):
        start = time.perf_counter()
        f()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def pieces(seed: int, *, quick: bool = False) -> Iterator[Piece]:
    """What there is to measure: the loop at each size, then the printed algorithm."""
    sizes = SIZES[:2] if quick else SIZES
    for size in sizes:
        key = (EXPERIMENT, f"N={size:.0e}", "copy of 16 columns", seed, 0)
        yield Piece(key, f"inference loop, N = {size:.0e}", loop_rows, (size, seed))
    size = sizes[-1] if quick else 10**6
    key = (EXPERIMENT, f"printed N={size:.0e}", "printed, 16 iterations", seed, 0)
    yield Piece(key, f"printed algorithm, N = {size:.0e}", printed_rows, (size, seed))
    size = sizes[-1] if quick else 2 * 10**6
    key = (EXPERIMENT, f"condition N={size:.0e}", "copy of S", seed, 0)
    yield Piece(key, f"conditioning on tall columns, N = {size:.0e}", condition_rows, (size, seed))


def loop_rows(size: int, seed: int) -> list[Row]:
    """The last iteration of each method beside a copy and the bound, and the peak memory of the loop."""
    problem, rows = f"N={size:.0e}", []
    copies = [copy_seconds(size)]
    for name, steps in methods().items():
        last = [statistics.median(loop_seconds(steps, size, seed)[-3:]) for _ in range(REPEATS)]
        copies.append(copy_seconds(size))
        # The copy moves each number twice: once read, once written.
        bandwidth = 2 * STEPS * size * FLOAT / statistics.median(copies[-2:])
        bound = (COLUMNS[name] * (STEPS - 1) + VECTORS) * size * FLOAT / bandwidth
        seconds = statistics.median(last)
        rows += [
            Row(EXPERIMENT, problem, f"{name}: iteration / bound", seed, seconds=seconds, metric=seconds / bound),
            Row(EXPERIMENT, problem, f"{name}: peak memory / N", seed, metric=peak_in_new_process(name, size, seed)),
        ]
    copy = statistics.median(copies)
    return [Row(EXPERIMENT, problem, "copy of 16 columns", seed, seconds=copy, metric=1.0), *rows]


def printed_rows(size: int, seed: int) -> list[Row]:
    """All 16 iterations and the mean after them: ours, and the printed algorithm that recomputes at each of them."""
    problem = f"printed N={size:.0e}"
    printed = statistics.median(
        sum(loop_seconds(lambda source: printed_steps(source, STEPS, PRIOR), size, seed)) for _ in range(3)
    )
    rows = [Row(EXPERIMENT, problem, "printed, 16 iterations", seed, seconds=printed, metric=1.0)]
    for name, steps in methods().items():
        ours = statistics.median(sum(loop_seconds(_with_mean(steps), size, seed)) for _ in range(REPEATS))
        rows.append(Row(EXPERIMENT, problem, f"{name}: times faster", seed, seconds=ours, metric=printed / ours))
    return rows


QUERIES: dict[str, tuple[Prior, Callable[[Posterior, Tensor], object]]] = {
    "Isotropic: condition, mean.solve / copy of S": (PRIOR, lambda posterior, v: posterior.mean.solve(v)),
    "CurvatureShaped: condition, eigh(8) / copy of S": (CurvatureShaped(0.1), lambda posterior, v: posterior.eigh(8)),
}


def _asked(prior: Prior, query: Callable[[Posterior, Tensor], object], S: Tensor, Y: Tensor, v: Tensor) -> object:
    return query(condition(prior, S, Y), v)


def condition_rows(size: int, seed: int) -> list[Row]:
    """A prior conditioned on 16 tall columns, and one question to the posterior, in copies of S."""
    problem, generator = f"condition N={size:.0e}", torch.Generator().manual_seed(seed)
    S = torch.randn(STEPS, size, generator=generator).mT
    Y = ((torch.rand(size, generator=generator) + 0.5) * S.mT).mT
    v, rows, copies = torch.randn(size, generator=generator), [], [copy_seconds(size)]
    for name, (prior, query) in QUERIES.items():
        seconds = repeated(partial(_asked, prior, query, S, Y, v))
        copies.append(copy_seconds(size))
        copy = statistics.median(copies[-2:])
        rows.append(Row(EXPERIMENT, problem, name, seed, seconds=seconds, metric=seconds / copy))
    copy = statistics.median(copies)
    return [Row(EXPERIMENT, problem, "copy of S", seed, seconds=copy, metric=1.0), *rows]


def _with_mean(steps: Callable[[Products], Iterator[Any]]) -> Callable[[Products], Iterator[Any]]:
    """The same steps; the last one also asks for the posterior mean."""

    def timed(source: Products) -> Iterator[Any]:
        for state in steps(source):
            if state.step == STEPS - 1:
                _ = state.posterior.mean
            yield state

    return timed


@dataclass(frozen=True)
class Target:
    """A ratio that was measured, and the one that was aimed at."""

    what: str
    measured: float
    wanted: str
    met: bool


def targets(rows: Sequence[Row]) -> list[Target]:
    """The ratios that matter, from the rows."""
    value = {(r.problem, r.method): r for r in rows}
    found = []
    for name in COLUMNS:
        for size in SIZES:
            row = value.get((f"N={size:.0e}", f"{name}: iteration / bound"))
            if row and size >= 10**6:
                found.append(at_most(f"{name}: iteration / bound, {row.problem}", row.metric, 2.0))
            if row:
                memory = value[row.problem, f"{name}: peak memory / N"].metric
                if size >= 10**5:  # below, a column is smaller than what the allocator rounds to
                    found.append(at_most(f"{name}: peak memory in columns of N, {row.problem}", memory, 2 * STEPS + 8))
        found += _growth(value, name)
    for row in rows:
        if row.method.endswith("times faster"):
            found.append(Target(f"{row.method}, {row.problem}", row.metric, "≥ 8", row.metric >= 8))
        elif row.method.endswith("/ copy of S"):
            found.append(at_most(f"{row.method}, {row.problem[10:]}", row.metric, 20))
    return found


def _growth(value: dict[tuple[str, str], Row], name: str) -> Iterator[Target]:
    """Growth of an iteration from N = 1e6 to 1e7, relative to that of a plain copy."""
    ours = [value.get((f"N={size:.0e}", f"{name}: iteration / bound")) for size in SIZES[-2:]]
    copies = [value.get((f"N={size:.0e}", "copy of 16 columns")) for size in SIZES[-2:]]
    if ours[0] and ours[1] and copies[0] and copies[1]:
        ratio = (ours[1].seconds / ours[0].seconds) / (copies[1].seconds / copies[0].seconds)
        yield at_most(f"{name}: growth from N = 1e6 to 1e7 / growth of a copy", ratio, 1.2)


def at_most(what: str, measured: float, bound: float) -> Target:
    """A ratio that should not be above a bound."""
    return Target(what, measured, f"≤ {bound:g}", measured <= bound)


def markdown(rows: Sequence[Row]) -> str:
    """The targets as a Markdown table."""
    return table(targets(rows))


def table(found: Sequence[Target]) -> str:
    """What was measured beside what was aimed at."""
    lines = ["| what | measured | target | met |", "|---|---|---|---|"]
    lines += [f"| {t.what} | {t.measured:.3g} | {t.wanted} | {'yes' if t.met else 'no'} |" for t in found]
    return "\n".join(lines) + "\n"


def figure(rows: Sequence[Row], path: Path) -> Path:
    """Seconds of an iteration against N, with the copy beside it."""
    fig, ax = plots.figure()
    for method, label, colour in (
        ("curvature: iteration / bound", "default, 16th iteration", plots.BLUE),
        ("paper: iteration / bound", "as printed (fast form), 16th iteration", plots.ORANGE),
        ("copy of 16 columns", "copy of 16 columns", plots.GREY),
    ):
        points = sorted((float(r.problem[2:]), r.seconds) for r in rows if r.method == method)
        ax.plot(*zip(*points), "o-", color=colour, label=label)
    ax.set(xscale="log", yscale="log", xlabel="N", ylabel="seconds")
    ax.set_title("An iteration of inference is a few passes over memory", loc="left")
    ax.legend(frameon=False)
    return plots.save(fig, path)
