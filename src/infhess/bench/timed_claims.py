"""`infhess bench curvature --seconds`: the ladders, and two claims about single calls, with their own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from infhess.bench import equal_error
from infhess.bench.equal_error import CURVLINOPS, EXPERIMENT, INFHESS, SIZES, TOPS, TRUTH, Tool, missing, tried, truth
from infhess.bench.timed_nets import full_data
from infhess.bench.timed_tools import Found, curvlinops_top, infhess_tight, infhess_top
from infhess.harness import Job, Row, markdown

__all__ = ["jobs", "missing", "summary"]

CNN, RTOL = "MNIST CNN", 0.002
TIGHT, ALL_POINTS = f"infhess.spectrum to rtol = {RTOL}", "Lanczos on all points, 32 products"


class Claim(NamedTuple):
    """A call for the top five of a net, and its setting."""

    net: str
    tool: str
    call: Callable[..., Found]
    rung: tuple[int, ...] = ()


CLAIMS = {
    # A tolerance so small that all of the data is read: infhess switches to Lanczos on it, compared with SciPy's.
    TIGHT: Claim(SIZES[0], INFHESS, lambda net, g: infhess_tight(net, RTOL, g)),
    ALL_POINTS: Claim(SIZES[0], CURVLINOPS, lambda net, g: curvlinops_top(net, net.points, 32, g)),
    # infhess at its defaults, Lanczos on parts of the data and on all of it.
    "infhess.spectrum": Claim(CNN, INFHESS, infhess_top, (128,)),
    "Lanczos on 256 points": Claim(CNN, CURVLINOPS, curvlinops_top, (256, 16)),
    "Lanczos on 1,000 points": Claim(CNN, CURVLINOPS, curvlinops_top, (1000, 16)),
    "Lanczos on all points": Claim(CNN, CURVLINOPS, curvlinops_top, (10_000, 16)),
}
TITLES = {CNN: "top five, MNIST CNN of 11,722 weights, 10,000 images", SIZES[0]: f"top five, {SIZES[0]}"}


def jobs(seed: int, folder: Path, *, quick: bool = False) -> Iterator[Job]:
    """The ladders, then the claims."""
    yield from equal_error.jobs(seed, folder, quick=quick)
    if not quick:
        yield Job(Row(EXPERIMENT, CNN, TRUTH, seed), truth, (folder,))
        for method, claim in CLAIMS.items():
            if claim.tool not in missing():
                yield Job(Row(EXPERIMENT, claim.net, method, seed), claimed, (folder,))


def claimed(template: Row, folder: Path) -> list[Row]:
    """A few trials of one call."""
    exact, (_, _, call, rung) = full_data(template.problem, folder), CLAIMS[template.method]
    return [tried(template, Tool({TOPS: call}), rung, exact, TOPS, rung[0] if rung else 0)[0]]


def summary(rows: Sequence[Row]) -> str:
    """Seconds by tool, one table per net, and one per claim."""
    text, found = equal_error.summary(rows), [r for r in rows if r.experiment == EXPERIMENT and r.method in CLAIMS]
    for net, title in TITLES.items():
        lines = [[r.method, f"{r.seconds:.2f}", f"{r.loss:.4f}"] for r in found if r.problem == net]
        text += "\n" + markdown([[title, "processor seconds", "mean error"], *lines]) if lines else ""
    return text
