"""Safe from any start: the paper's net, both initialisations, rates over eight orders of magnitude."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import nn

from infhess.bench.deep_baselines import around, observed
from infhess.harness import Job, Make, Row, Training, markdown
from infhess.harness.methods import by_setting
from infhess.harness.training import Updated
from infhess.problems import CountedStream, Data, NetProblem, Shuffled, paper_net, seeded
from infhess.problems.features import cifar_images

EXPERIMENT, BATCH, STEPS, EPOCH, IMAGES = "bench-deep-safety", 32, 320, 156, 5000
RATES = (1e-6, 1e-4, 1e-2, 1.0, 1e2)
CHANCE = math.log(10)
STARTS = ("default initialisation", "xavier initialisation")


class Drawn(CountedStream):
    """Batches with replacement."""

    def __init__(self, data: Data, generator: torch.Generator) -> None:
        super().__init__(Shuffled(data, BATCH, torch.Generator()))
        self.data, self.generator = data, generator

    def __next__(self) -> Data:
        """The next batch."""
        part = torch.randint(self.population, (BATCH,), generator=self.generator)
        self.points += BATCH
        return self.data[0][part], self.data[1][part]


class UpdatedEachEpoch(Updated):
    """`update` at the start of each epoch."""

    steps = -1

    def __init__(self, rate: float, problem: NetProblem, stream: CountedStream) -> None:
        super().__init__(problem, stream, partial(around, base="sgd", rate=rate, rank=2, blocks="layer"))

    @property
    def due(self) -> bool:
        """At the first step, and after each epoch."""
        self.steps += 1
        return self.steps % EPOCH == 0


METHODS: dict[str, Make] = {
    **{f"{base.lower()}, observe": partial(observed, base=base) for base in ("sgd", "momentum .9", "Adam")},
    "sgd, update each epoch": by_setting(UpdatedEachEpoch),
}


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """One run for each initialisation, method and rate; narrow copies and three rates with `quick`."""
    width, steps, rates = (0.2, 150, RATES[::2]) if quick else (1.0, STEPS, RATES)
    for start in STARTS:
        for method in METHODS:
            for rate in rates:
                template = Row(EXPERIMENT, start, f"{method}, rate {rate:g}", seed, BATCH)
                yield Job(template, run, (method, rate, width, steps))


def run(template: Row, method: str, rate: float, width: float, steps: int) -> list[Row]:
    """Train, and give the final cross-entropy (loss) and accuracy (metric) on the training images."""
    (data, _), net = images(), partial(paper_net, width, xavier=template.problem.startswith("xavier"))
    problem, stream = NetProblem(net, images, l2=0.01), Drawn(data, torch.Generator().manual_seed(template.seed))
    with seeded(template.seed):
        training = METHODS[method](rate)(problem, stream)
    assert isinstance(training, Training)
    began = time.perf_counter()
    for _ in range(steps):
        training.step()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        outputs = torch.cat([training.model(part) for part in torch.split(data[0], 500)])
    loss = float(nn.functional.cross_entropy(outputs, data[1]))
    accuracy = float((outputs.argmax(1) == data[1]).float().mean())
    end = replace(template, data_points=stream.points, products=training.reported_products, seconds=seconds)
    return [replace(end, loss=loss, metric=accuracy)]


@lru_cache(maxsize=1)
def images() -> tuple[Data, Data]:
    """The first 5,000 training images of CIFAR-10, standardised by channel; none to test."""
    return cifar_images(IMAGES, 0)


def summary(rows: Sequence[Row]) -> str:
    """Final cross-entropy and accuracy by rate; a net that is no better than chance is dead."""
    rates, found = sorted({float(r.method.rpartition(" ")[2]) for r in rows}), {(r.problem, r.method): r for r in rows}
    lines = [["start, method", *(f"rate {r:g}" for r in rates), "dead"]]
    for start in STARTS:
        for method in METHODS:
            mine = [found.get((start, f"{method}, rate {rate:g}")) for rate in rates]
            shown = (f"{r.loss:.3f} ({100 * r.metric:.0f} %)" if r else "–" for r in mine)
            lines.append([f"{start}, {method}", *shown, str(sum(map(dead, filter(None, mine))))])
    return (
        f"{markdown(lines)}\nDead or not finite: {sum(map(dead, rows))} of {len(rows)} runs (chance is {CHANCE:.3f}).\n"
    )


def dead(row: Row) -> bool:
    """No better than chance."""
    return not row.loss < CHANCE - 0.01
