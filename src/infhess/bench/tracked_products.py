"""What `Tracker` saves while a net trains: its products and widths beside those of a fresh estimate at every update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from statistics import mean

import torch
from torch import Tensor

from infhess.bench.timed_nets import Epochs, Timed, seconds_of, timed_net
from infhess.harness import Job, Row, markdown
from infhess.spectra import Spectrum, Tracker, spectrum

EXPERIMENT = "bench-curvature-tracker"
NET, BATCH = "digits", 64
RATES, KS = (1e-3, 1e-2, 1e-1), (1, 5)
UPDATES, STEPS = 26, 10  # a fresh estimate and as many warm ones as come in a row, so many steps of sgd apart
TRACKED, FRESH = "Tracker.update", "a fresh spectrum"


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """One for each number of eigenvalues and each rate of the sgd that moves the net."""
    for k in KS[: 1 if quick else None]:
        for rate in RATES:
            template = Row(EXPERIMENT, f"{NET}, k = {k}", f"η = {rate:g}: {TRACKED}", seed, BATCH)
            yield Job(template, followed, (rate, k, 6 if quick else UPDATES))


def followed(template: Row, rate: float, k: int, updates: int) -> list[Row]:
    """Both at the same parameters; products and points of all updates, and the mean relative half-width as the metric."""
    net = deepcopy(timed_net(NET))
    g = torch.Generator().manual_seed(template.seed)
    sources = [net.source(BATCH, torch.Generator().manual_seed(template.seed + i)) for i in (1, 2)]
    tracker, widths, seconds, steps = (
        Tracker(sources[0], k),
        (list[float](), list[float]()),
        [0.0, 0.0],
        moving(net, rate, g),
    )
    for _ in range(updates):
        seconds[0] += seconds_of(lambda: widths[0].append(width(tracker.update())))
        seconds[1] += seconds_of(lambda: widths[1].append(width(spectrum(sources[1], k, generator=g))))
        next(steps)
    rows = []
    for name, source, width_, spent in zip((TRACKED, FRESH), sources, widths, seconds):
        row = replace(
            template, method=f"η = {rate:g}: {name}", data_points=source.data_points, products=source.products
        )
        rows.append(replace(row, seconds=spent, metric=mean(width_), loss=mean(m.warm for m in tracker.history)))
    return rows


def width(found: Spectrum) -> float:
    """The mean half-width of 95 % intervals, relative to their values."""
    low, high = found.interval(0.95)
    return float(((high - low) / 2 / found.values.abs()).mean())


def moving(net: Timed, rate: float, g: torch.Generator) -> Iterator[None]:
    """Some steps of sgd at a time."""
    batches: Iterator[tuple[Tensor, Tensor]] = iter(())
    optimizer = torch.optim.SGD(net.model.parameters(), rate)
    while True:
        for _ in range(STEPS):
            batch = next(batches, None)
            if batch is None:
                batches = iter(Epochs(net.x, net.y, BATCH, g))
                batch = next(batches)
            optimizer.zero_grad()
            net.loss(net.model(batch[0]), batch[1]).backward()
            optimizer.step()
        yield


def summary(rows: Sequence[Row]) -> str:
    """A line for each number of eigenvalues and rate; products of fresh estimates over the tracker's."""
    cells = {(r.problem, *r.method.split(": ")): r for r in rows if r.experiment == EXPERIMENT}
    lines = [
        [
            "eigenvalues",
            "sgd between updates",
            "warm updates",
            "products, fresh / tracked",
            "half-width, fresh",
            "tracked",
        ]
    ]
    for problem, rate in dict.fromkeys((p, r) for p, r, _ in cells):
        tracked, fresh = cells[problem, rate, TRACKED], cells[problem, rate, FRESH]
        ratio = f"{fresh.products:,} / {tracked.products:,} = {fresh.products / tracked.products:.1f}"
        shown = [f"{100 * tracked.loss:.0f} %", ratio, f"{100 * fresh.metric:.1f} %", f"{100 * tracked.metric:.1f} %"]
        lines.append([problem, f"{STEPS} steps, {rate}", *shown])
    return markdown(lines)
