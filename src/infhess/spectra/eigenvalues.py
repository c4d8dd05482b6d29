"""The largest eigenvalues of the full-data matrix, or of each layer's block, from mini-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, overload

import torch

from infhess._checks import count, generator_on, share
from infhess._precision import full_precision
from infhess._random import normal
from infhess.curvature import Source, as_source
from infhess.curvature.selection import Layer, layers_of
from infhess.spectra.estimate import Estimate, by_layer
from infhess.spectra.faces import Layers
from infhess.spectra.held import divided, least_bytes
from infhess.spectra.ritz import Ritz
from infhess.spectra.rounds import Cost, Plan, Task, as_round, explore, rounds
from infhess.spectra.spectrum import Spectrum, as_spectrum

LEAST_POINTS = 128  # per direction; with fewer the spread over chunks is too uncertain
BUDGET = 2**20


@overload
def spectrum(
    source: Any, k: int = 10, rtol: float | None = None, *, by: None = None, points: int | None = None,
    directions: int | None = None, budget: int | None = None, memory: int | None = None,
    generator: torch.Generator | None = None,
) -> Spectrum: ...  # fmt: skip
@overload
def spectrum(
    source: Any, k: int = 10, rtol: float | None = None, *, by: str, points: int | None = None,
    directions: int | None = None, budget: int | None = None, memory: int | None = None,
    generator: torch.Generator | None = None,
) -> Layers[Spectrum]: ...  # fmt: skip


@full_precision
def spectrum(
    source: Any,
    k: int = 10,
    rtol: float | None = None,
    *,
    by: str | None = None,
    points: int | None = None,
    directions: int | None = None,
    budget: int | None = None,
    memory: int | None = None,
    generator: torch.Generator | None = None,
) -> Spectrum | Layers[Spectrum]:
    """The k largest eigenvalues of the full-data matrix behind a source, with error bars.

    Args:
        source: `Hessian`, `GaussNewton`, `Fisher`, `Products`, or a square matrix with `@`.
        k: how many eigenvalues.
        rtol: continue with more data per direction until all 95 % intervals are narrower than ± rtol of their value.
        by: "layer" for a dict of the spectra of the layers' blocks, by name. All layers share the data and the graphs of one
            pass; with `rtol` each layer has its own passes, as many as it needs.
        points: fresh data points per direction, rounded up to whole batches; by default 128, and two batches.
        directions: how many; by default 2k + 6 to 4k + 16, as many as the top k values need.
        budget: with `rtol`, no further round if it would bring the total above this many data points (products, for a source
            without data); a million by default.
        memory: bytes for the directions and the deviations of their products, 8 vectors each. Beyond it deviations are kept in
            bfloat16, then on disk, and then there are fewer directions, but at least k. By default deviations are on disk if
            all would take more than 2 GiB. Layers that share a pass share it.
        generator: random numbers for the start.

    >>> import torch
    >>> from infhess import Hessian
    >>> s = spectrum(torch.diag(torch.arange(1.0, 31.0)), k=2)
    >>> s.values.round().tolist()
    [30.0, 29.0]
    >>> w = {"a.weight": torch.zeros(1, requires_grad=True), "b.weight": torch.zeros(1, requires_grad=True)}
    >>> source = Hessian(lambda x: ((2 * w["a.weight"] + w["b.weight"]) * x).square().mean(), w, [torch.ones(4)])
    >>> {name: round(float(s.values[0]), 3) for name, s in spectrum(source, 1, by="layer").items()}
    {'a': 8.0, 'b': 2.0}

    """
    if by_layer(by) is None:
        *_, last = spectrum_rounds(
            source, k, rtol, points=points, directions=directions, budget=budget, memory=memory, generator=generator
        )
        return last
    source, k = as_source(source), count(k, "k")
    ranges = layers_of(source)
    layers = [Layer(source, own) for own in ranges.values()]
    plans = [planned(layer, min(k, layer.size), rtol, points, directions, budget, memory) for layer in layers]
    tasks = _tasks(layers, plans, generator)
    found = _in_one_pass(tasks) if rtol is None else [list(_spectra(task))[-1] for task in tasks]
    return Layers(zip(ranges, found))


@full_precision
def spectrum_rounds(
    source: Any,
    k: int = 10,
    rtol: float | None = None,
    *,
    points: int | None = None,
    directions: int | None = None,
    budget: int | None = None,
    memory: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Spectrum]:
    """`spectrum`, one round at a time. Each round stands alone: pooling rounds, whose number depends on the data, is biased.

    >>> import torch, infhess
    >>> x = torch.randn(4096, 5, generator=torch.Generator().manual_seed(0))
    >>> w = torch.zeros(5, requires_grad=True)
    >>> source = infhess.Hessian(lambda x: (x @ w).square().mean() / 2, [w], x.split(32))
    >>> points = [found.data_points for found in spectrum_rounds(source, k=1, rtol=0.05)]
    >>> len(points) > 1, points == sorted(points)  # more data in each round, until the interval is narrow enough
    (True, True)
    """
    source = as_source(source)
    plan = planned(source, k, rtol, points, directions, budget, memory)
    (task,) = _tasks([source], [plan], generator)
    return _spectra(task)


def planned(
    source: Source,
    k: int,
    rtol: float | None = None,
    points: int | None = None,
    directions: int | None = None,
    budget: int | None = None,
    memory: int | None = None,
) -> Plan:
    """The arguments of `spectrum`, checked, with defaults filled in."""
    k = count(k, "k", source.size)
    if rtol is not None:
        rtol = share(rtol, "rtol")
    data = (LEAST_POINTS, 2) if points is None else (count(points, "points"), 1)
    span = (2 * k + 6, 4 * k + 16) if directions is None else (count(directions, "directions"),) * 2
    if span[1] < k:
        raise ValueError(f"directions: expected at least k = {k}, got {directions}")
    most = BUDGET if budget is None else count(budget, "budget")
    return Plan(k, rtol, most, data, span, None if memory is None else count(memory, "memory"))


def _tasks(parts: Sequence[Source], plans: Sequence[Plan], generator: torch.Generator | None) -> list[Task]:
    """Each plan with a random start."""
    generator_on(generator)
    generator = generator or torch.Generator().manual_seed(0)
    return [Task(p, plan, normal(p.size, like=p.like, generator=generator)) for p, plan in zip(parts, plans)]


def _spectra(task: Task) -> Iterator[Spectrum]:
    """A spectrum after each round."""
    cost = Cost(task.source)
    for found in rounds(task):
        yield as_spectrum(
            found.errors, found.vectors, cost, found.number, found.stopped, task.source, found.krylov.bytes
        )


def _in_one_pass(tasks: Sequence[Task]) -> list[Spectrum]:
    """Layers side by side, which share memory, the data of each step, and the graph of each batch."""
    cost, memory = Cost(tasks[0].source), tasks[0].plan.memory
    if memory is not None:
        shares = divided(memory, [least_bytes(task.start, task.plan.k) for task in tasks])
        tasks = [t._replace(plan=replace(t.plan, memory=share)) for t, share in zip(tasks, shares)]
    found = [as_round(krylov, task.plan, cost) for task, krylov in zip(tasks, explore(tasks))]
    return [
        as_spectrum(one.errors, one.vectors, cost, one.number, one.stopped, task.source, one.krylov.bytes)
        for task, one in zip(tasks, found)
    ]


@full_precision
def largest(
    source: Any, rtol: float | None = None, *, budget: int | None = None, generator: torch.Generator | None = None
) -> Estimate:
    """The largest eigenvalue of the full-data matrix; `.upper(0.99)` is a bound for choosing a safe step length.

    >>> import torch
    >>> round(largest(torch.diag(torch.arange(1.0, 9.0))).value, 3)
    8.0
    """
    found = spectrum(source, 1, rtol, budget=budget, generator=generator)
    return Estimate(
        float(found.values[0]), float(found.std[0]), found.products, found.data_points,
        partial(_interval_of_largest, found._ritz), partial(_upper_of_largest, found._ritz),
    )  # fmt: skip


def _interval_of_largest(found: Ritz, level: float) -> tuple[float, float]:
    low, high = found.interval(level)
    return float(low[0]), float(high[0])


def _upper_of_largest(found: Ritz, level: float) -> float:
    return float(found.upper(level)[0])
