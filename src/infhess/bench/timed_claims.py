"""`infhess bench curvature --seconds`: the ladders, and two claims about single calls as rows of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from infhess.bench import equal_error, timed_tools
from infhess.bench.equal_error import (
    CURVLINOPS,
    EXPERIMENT,
    INFHESS,
    SIZES,
    TOOLS,
    TOPS,
    TRUTH,
    Tool,
    missing,
    tried,
    truth,
)
from infhess.bench.timed_nets import full_data
from infhess.bench.timed_tools import Found
from infhess.harness import Job, Row, markdown

__all__ = ["jobs", "missing", "summary"]

CNN, RTOL = "MNIST CNN", 0.002
TIGHT, ALL_POINTS = f"infhess.spectrum to rtol = {RTOL}", "Lanczos on all points, 32 products"


def jobs(seed: int, folder: Path, *, quick: bool = False) -> Iterator[Job]:
    """The ladders, then the claims."""
    yield from equal_error.jobs(seed, folder, quick=quick)
    if not quick:
        yield from exact_jobs(seed, folder)
        yield from claim_jobs(seed, folder)


def summary(rows: Sequence[Row]) -> str:
    """Seconds by tool, a table for each net, and one for each claim."""
    return equal_error.summary(rows) + claim_summary([r for r in rows if r.experiment == EXPERIMENT])


def exact_jobs(seed: int, folder: Path) -> Iterator[Job]:
    """A tolerance so small that all of the data is read: infhess goes over to Lanczos on it, beside SciPy's."""
    for method in (TIGHT, ALL_POINTS)[: 1 if CURVLINOPS in missing() else 2]:
        yield Job(Row(EXPERIMENT, SIZES[0], method, seed), tight, (folder,))


def tight(template: Row, folder: Path) -> list[Row]:
    """Three trials of one of the two."""
    calls = {TIGHT: lambda net, g: timed_tools.infhess_tight(net, RTOL, g), ALL_POINTS: _lanczos}
    exact = full_data(template.problem, folder)
    return [tried(template, Tool({TOPS: calls[template.method]}), (), exact, TOPS, 0)[0]]


def _lanczos(net: Any, g: torch.Generator) -> Found:
    return timed_tools.curvlinops_top(net, net.points, 32, g)


def claim_jobs(seed: int, folder: Path) -> Iterator[Job]:
    """The top five of a CNN of 11,722 weights on 10,000 images: infhess as it comes, Lanczos on parts of the data and all."""
    yield Job(Row(EXPERIMENT, CNN, TRUTH, seed), truth, (folder,))
    cases: dict[str, tuple[str, tuple[int, ...]]] = {"infhess.spectrum": (INFHESS, (128,))}
    if CURVLINOPS not in missing():
        for name, points in {"256 points": 256, "1,000 points": 1000, "all points": 10_000}.items():
            cases[f"Lanczos on {name}"] = (CURVLINOPS, (points, 16))
    for method, (tool, rung) in cases.items():
        yield Job(Row(EXPERIMENT, CNN, method, seed), claimed, (tool, rung, folder))


def claimed(template: Row, tool: str, rung: tuple[int, ...], folder: Path) -> list[Row]:
    """One rung of a tool."""
    exact = full_data(template.problem, folder)
    return [tried(template, TOOLS[tool], rung, exact, TOPS, rung[0])[0]]


def claim_summary(rows: Sequence[Row]) -> str:
    """The claim, one line per method; and a tolerance that asks for all of the data."""
    claim = [r for r in rows if r.problem == CNN and r.method != TRUTH]
    exact = [r for r in rows if r.method in (TIGHT, ALL_POINTS)]
    return _lines("top five, MNIST CNN of 11,722 weights, 10,000 images", claim) + _lines(
        f"top five, {SIZES[0]}", exact
    )


def _lines(title: str, rows: Sequence[Row]) -> str:
    lines = [[title, "processor seconds", "mean error"]]
    lines += [[r.method, f"{r.seconds:.2f}", f"{r.loss:.4f}"] for r in rows]
    return "\n" + markdown(lines) if rows else ""
