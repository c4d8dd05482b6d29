"""What `Tracker` saves while a net trains: its products and widths compared with a fresh estimate at every update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count, islice
from statistics import mean

import torch

from infhess.spectra import Spectrum, Tracker, spectrum
from infhess_bench.bench.timed_nets import Timed, timed_net
from infhess_bench.harness import Job, Row, markdown, processor_seconds

EXPERIMENT = "bench-curvature-tracker"
NET, BATCH = "digits", 64
RATES, KS = (1e-3, 1e-2, 1e-1), (1, 5)
UPDATES, STEPS = 26, 10  # one fresh update and the most warm ones in a row, this many SGD steps apart
TRACKED, FRESH = "Tracker.update", "a fresh spectrum"


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """One job per number of eigenvalues and rate of the SGD that moves the net."""
    for k in KS[: 1 if quick else None]:
        for rate in RATES:
            template = Row(EXPERIMENT, f"{NET}, k = {k}", f"η = {rate:g}: {TRACKED}", seed, BATCH)
            yield Job(template, followed, (rate, k, 6 if quick else UPDATES))


def followed(template: Row, rate: float, k: int, updates: int) -> list[Row]:
    """Both at the same parameters; products and points of all updates, and the mean relative half-width as the metric."""
    net = deepcopy(timed_net(NET))
    g = torch.Generator().manual_seed(template.seed)
    sources = [net.source(BATCH, torch.Generator().manual_seed(template.seed + i)) for i in (1, 2)]
    tracker, steps = Tracker(sources[0], k), moving(net, rate, g)
    calls: dict[str, Callable[[], Spectrum]] = {TRACKED: tracker.update}
    calls |= {FRESH: lambda: spectrum(sources[1], k, generator=g)}
    widths, seconds = {name: list[float]() for name in calls}, dict.fromkeys(calls, 0.0)
    for _ in range(updates):
        for name, call in calls.items():
            seconds[name] += processor_seconds(lambda: widths[name].append(width(call())))  # noqa: B023
        next(steps)
    rows, template = [], replace(template, loss=mean(m.warm for m in tracker.history))
    for name, source in zip(calls, sources):
        row = replace(template, method=f"η = {rate:g}: {name}", seconds=seconds[name], metric=mean(widths[name]))
        rows.append(replace(row, data_points=source.data_points, products=source.products))
    return rows


def width(found: Spectrum) -> float:
    """The mean half-width of 95 % intervals, relative to their values."""
    low, high = found.interval(0.95)
    return float(((high - low) / 2 / found.values.abs()).mean())


def moving(net: Timed, rate: float, g: torch.Generator) -> Iterator[None]:
    """A few steps of SGD at a time."""
    optimizer = torch.optim.SGD(net.model.parameters(), rate)
    batches = (batch for _ in count() for batch in net.epochs(BATCH, g))
    while True:
        for x, y in islice(batches, STEPS):
            optimizer.zero_grad()
            net.loss(net.model(x), y).backward()
            optimizer.step()
        yield


def summary(rows: Sequence[Row]) -> str:
    """One line per number of eigenvalues and rate; products of fresh estimates over the tracker's."""
    cells = {(r.problem, *r.method.split(": ")): r for r in rows if r.experiment == EXPERIMENT}
    head = ["eigenvalues", "sgd between updates", "warm updates", "products, fresh / tracked", "half-width, fresh"]
    lines = [[*head, "tracked"]]
    for problem, rate in dict.fromkeys((p, r) for p, r, _ in cells):
        tracked, fresh = cells[problem, rate, TRACKED], cells[problem, rate, FRESH]
        ratio = f"{fresh.products:,} / {tracked.products:,} = {fresh.products / tracked.products:.1f}"
        shown = [f"{100 * tracked.loss:.0f} %", ratio, f"{100 * fresh.metric:.1f} %", f"{100 * tracked.metric:.1f} %"]
        lines.append([problem, f"{STEPS} steps, {rate}", *shown])
    return markdown(lines)
