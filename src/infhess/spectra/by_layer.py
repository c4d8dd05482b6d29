"""The top of the spectrum, for the whole matrix or for each layer's block."""

from __future__ import annotations

import inspect
from typing import Any, overload

import torch

from infhess._checks import count, generator_on
from infhess._precision import full_precision
from infhess._random import normal
from infhess.curvature import BatchSource, as_source
from infhess.curvature.selection import Layer, layers_of
from infhess.spectra.estimate import by_layer
from infhess.spectra.faces import Layers
from infhess.spectra.held import CHUNKS
from infhess.spectra.krylov import Krylov
from infhess.spectra.ritz import ritz
from infhess.spectra.rounds import Cost
from infhess.spectra.spectrum import Spectrum, as_spectrum, planned, spectrum_rounds
from infhess.spectra.spectrum import spectrum as of_whole


@overload
def spectrum(source: Any, k: int = 10, rtol: float | None = None, *, by: None = None, **options: Any) -> Spectrum: ...
@overload
def spectrum(source: Any, k: int = 10, rtol: float | None = None, *, by: str, **options: Any) -> Layers[Spectrum]: ...


@full_precision
def spectrum(
    source: Any, k: int = 10, rtol: float | None = None, *, by: str | None = None, **options: Any
) -> Spectrum | Layers[Spectrum]:
    """The k largest eigenvalues of the full-data matrix behind a source, with error bars.

    Args:
        source: `Hessian`, `GaussNewton`, `Fisher`, `Products`, or a square matrix with `@`.
        k: how many eigenvalues.
        rtol: continue with more data per direction until all 95 % intervals are narrower than ± rtol of their value.
        by: "layer" for a dict of the spectra of the layers' blocks, by name. All layers share the data and the graphs of one
            pass; with `rtol` each layer has its own passes, as many as it needs.
        **options: `points`, fresh data points per direction, rounded up to whole batches (by default 128, and two batches);
            `directions`, how many (by default 2k + 6 to 4k + 16, as many as the top k values need); `budget`: with `rtol`, no
            further round if it would bring the total above this many data points (products, for a source without data), a
            million by default; `memory`, bytes for the directions and the deviations of their products, 8 vectors each: beyond
            it deviations are kept in bfloat16, then on disk, and then there are fewer directions, but at least k (by default
            deviations are on disk if all would take more than 2 GiB); `generator`, random numbers for the start.

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
        return of_whole(source, k, rtol, **options)
    source = as_source(source)
    layers = {name: Layer(source, ranges) for name, ranges in layers_of(source).items()}
    if rtol is not None:
        return Layers({name: of_whole(layer, min(k, layer.size), rtol, **options) for name, layer in layers.items()})
    return _one_pass(source, layers, count(k, "k"), **options)


_inner = inspect.signature(spectrum_rounds)
_by = inspect.Parameter("by", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None")
_all = list(_inner.parameters.values())
spectrum.__signature__ = _inner.replace(  # type: ignore[attr-defined]
    parameters=[*_all[:3], _by, *_all[3:]], return_annotation="Spectrum | Layers[Spectrum]"
)


def _one_pass(
    source: BatchSource,
    layers: dict[str, Layer],
    k: int,
    *,
    points: int | None = None,
    directions: int | None = None,
    budget: int | None = None,
    memory: int | None = None,
    generator: torch.Generator | None = None,
) -> Layers[Spectrum]:
    """Directions of all layers side by side: each step reads its data once, and builds the graph of a batch once."""
    generator_on(generator)
    del budget  # for further rounds, and there are none here
    generator = generator or torch.Generator().manual_seed(0)
    plans = {
        name: planned(layer, min(k, layer.size), None, points, directions, None, memory and memory // len(layers))
        for name, layer in layers.items()
    }
    data, least = next(iter(plans.values())).data, {name: plan.span[0] for name, plan in plans.items()}
    cost, found = Cost(source), {}
    for name, layer in layers.items():
        plan, start = plans[name], normal(layer.size, like=layer.like, generator=generator)
        found[name] = Krylov(start, min(max(plan.span[1], plan.k), layer.size), max(plan.k, 1), plan.memory)
    live = list(layers)
    while live:
        live = [name for name in _step(source, layers, {name: found[name] for name in live}, data)
                if len(found[name]) < least[name] or not ritz(found[name]).converged(min(k, layers[name].size))]  # fmt: skip
    return Layers({name: _spectrum(krylov, plans[name].k, cost, layers[name]) for name, krylov in found.items()})


def _step(source: BatchSource, layers: dict[str, Layer], live: dict[str, Krylov], data: tuple[int, int]) -> list[str]:
    """Add one direction to each; return the names of those that have room for another."""
    before = source.data_points
    questions = [layers[name].question(krylov.direction) for name, krylov in live.items()]
    draws = source.fresh_answers(questions, data[0], CHUNKS, data[1])
    read = source.data_points - before
    return [name for (name, krylov), draw in zip(live.items(), draws) if krylov.take(draw, read)]


def _spectrum(krylov: Krylov, k: int, cost: Cost, layer: Layer) -> Spectrum:
    errors = ritz(krylov)
    krylov.close()
    vectors = krylov.Q[: len(krylov)].mT @ errors.weights[:, :k].to(krylov.Q)
    return as_spectrum(errors, vectors, cost, 1, "one round", layer, krylov.bytes)
