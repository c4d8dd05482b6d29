"""The spectrum of transformers of up to ten million weights: seconds and memory as weights, data and k grow."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from infhess.curvature import Hessian
from infhess.spectra import spectrum
from infhess_bench.harness import Job, Row, markdown, on_threads
from infhess_bench.harness.peak import printed_by, resident_peak
from infhess_bench.problems import seeded
from infhess_bench.problems.nets import CharTransformer

EXPERIMENT = "bench-curvature-large"
LETTERS, LENGTH, BATCH = 256, 16, 8
GIB = 2**30
MEMORY, SECONDS = "memory beside the model, GiB", "seconds"
LARGEST, WIDTH = "largest", "half of its 95 % interval / value"
# (width, blocks) of transformers with about this many weights.
SIZES = {100_000: (48, 3), 1_000_000: (128, 5), 10_000_000: (320, 8)}


@dataclass(frozen=True)
class Case:
    """A transformer of a size, data points per direction, k, a bound on memory, and whether its loss is in bfloat16."""

    weights: int = 1_000_000
    points: int = 64
    k: int = 1
    memory: int | None = None
    bfloat16: bool = False

    @property
    def name(self) -> str:
        """The name in rows."""
        bound = "" if self.memory is None else f", memory = {self.memory / GIB:g} GiB"
        dtype = ", bfloat16" if self.bfloat16 else ""
        return f"{self.weights:.0e} weights, {self.points} points a direction, k = {self.k}{bound}{dtype}"


def cases(*, quick: bool = False) -> list[Case]:
    """Weights, data and k grow one at a time; then bounds on memory, and products in bfloat16."""
    if quick:
        return [Case(100_000), Case(100_000, memory=2**24)]
    small, *_ = SIZES
    grown = [*map(Case, SIZES), Case(small, points=256), Case(small, k=5), Case(small, points=256, k=5)]
    return [*grown, Case(small, memory=2**24), Case(memory=2**27), Case(small, bfloat16=True)]


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """One job per case, each in its own process."""
    for case in cases(quick=quick):
        yield Job(Row(EXPERIMENT, case.name, SECONDS, seed, BATCH), measured, (case,))


def measured(template: Row, case: Case) -> list[Row]:
    """Seconds of a spectrum, and peak resident memory beyond that of the model and one gradient."""
    found = json.loads(printed_by(__name__, json.dumps(asdict(case)), template.seed).splitlines()[-1])
    row = replace(template, **{name: found[name] for name in ("data_points", "products", "seconds")})
    numbers = {
        SECONDS: found["seconds"], MEMORY: found["peak"] / GIB, "stated, GiB": found["stated"] / GIB,
        LARGEST: found["value"], WIDTH: found["width"],
    }  # fmt: skip
    return [replace(row, method=name, metric=value) for name, value in numbers.items()]


class Tokens:
    """An endless stream of random tokens: sequences, and the token that follows each."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.randint(LETTERS, (BATCH, LENGTH + 1), generator=self._generator)


def source_of(case: Case, seed: int) -> Hessian:
    """The Hessian of a transformer at initialisation, on random tokens."""
    width, blocks = SIZES[case.weights]
    with seeded(seed):
        net = CharTransformer(LETTERS, LENGTH, width, heads=8, blocks=blocks)

    def loss(codes: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=case.bfloat16):
            logits = net(codes[:, :-1])
        return cross_entropy(logits.float().flatten(0, 1), codes[:, 1:].flatten())

    return Hessian(loss, net.parameters(), Tokens(seed))


def run(case: Case, seed: int) -> dict[str, Any]:
    """A spectrum, with its memory and seconds on one thread."""
    source = source_of(case, seed)
    source.gradient()  # any training step holds this too
    start = time.perf_counter()
    with on_threads(1):
        found, peak = resident_peak(lambda: spectrum(source, case.k, points=case.points, memory=case.memory))
    low, high = found.interval()
    return {
        "seconds": time.perf_counter() - start, "peak": peak, "stated": found.memory,
        "products": found.products, "data_points": found.data_points,
        "value": float(found.values[0]), "width": float((high - low)[0] / 2 / found.values[0]),
    }  # fmt: skip


def summary(rows: Sequence[Row]) -> str:
    """One line per case."""
    found = {(r.problem, r.method): r for r in rows if r.experiment == EXPERIMENT}
    lines = [["spectrum of a transformer", "products", SECONDS, MEMORY, "largest eigenvalue"]]
    for problem in dict.fromkeys(p for p, _ in found):
        row = found[problem, SECONDS]
        memory, value, width = (found[problem, what].metric for what in (MEMORY, LARGEST, WIDTH))
        lines.append([problem, str(row.products), f"{row.seconds:.1f}", f"{memory:.2f}", f"{value:.3g} ± {width:.0%}"])
    return markdown(lines)


if __name__ == "__main__":
    print(json.dumps(run(Case(**json.loads(sys.argv[1])), int(sys.argv[2]))))
