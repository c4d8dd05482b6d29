"""Top eigenvalues over time while the parameters move: warm updates while they are valid, otherwise fresh estimates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from infhess import _draw
from infhess._checks import finite_number, generator_on
from infhess._precision import full_precision
from infhess._random import normal
from infhess.curvature import BatchSource, Source, as_source
from infhess.spectra.anchor import Anchor
from infhess.spectra.eigenvalues import planned
from infhess.spectra.rounds import Cost, Task, rounds, width_of
from infhess.spectra.spectrum import Spectrum, as_spectrum

WARM = "warm start"
# Most warm updates in a row: after these, what lies outside the tracked vectors is estimated afresh.
IN_A_ROW = 25
Rate = float | Callable[[], float] | None


@dataclass(frozen=True)
class Moment:
    """One update: eigenvalues with 95 % intervals, the learning rate if given, and the cost.

    Attributes:
        step: the number given to the update, or else its own number.
        values, std, low, high: k numbers each.
        rate, limit: the learning rate η, and 2/η, above which gradient descent on a quadratic diverges; None if not given.
        warm: whether the last vectors were still valid.
        why: the reason for a fresh estimate.

    >>> import torch, infhess
    >>> w = torch.zeros(2, requires_grad=True)
    >>> batches = [torch.tensor([[2.0, 0.0], [0.0, 1.0]])]
    >>> tracker = infhess.Tracker(infhess.Hessian(lambda x: (x @ w).square().mean(), [w], batches))
    >>> found = tracker.update(step=100, rate=0.1)
    >>> moment = tracker.history[-1]
    >>> moment.step, [round(v, 3) for v in moment.values], moment.limit  # 2/η: stable below
    (100, [4.0], 20.0)

    """

    step: int
    values: tuple[float, ...]
    std: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    rate: float | None
    products: int
    data_points: int
    warm: bool
    why: str

    @property
    def limit(self) -> float | None:
        """2/η."""
        return None if self.rate is None else 2 / self.rate


class Tracker:
    """The k largest eigenvalues over time: call `update` whenever you like while the parameters move.

    The first update is a fresh `spectrum`. Later ones multiply the last vectors with a few kept batches, before and after the
    parameters moved: the change has little noise, so a fraction of the products keeps the interval as narrow. If the vectors
    no longer fit (the parameters jumped, eigenvalues crossed), the update is a fresh spectrum again; so is every 26th. The
    errors of updates between two fresh ones share most of their noise.

    Args:
        source: `Hessian`, `GaussNewton`, … at parameters that move; or a matrix or `Products` that changes.
        k: how many eigenvalues.
        rtol: of fresh estimates, as in `spectrum`.
        points: of fresh estimates, likewise.
        budget: of fresh estimates, likewise.
        memory: of fresh estimates, likewise.
        generator: random numbers for the starts.

    >>> import torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> from infhess import Hessian, Tracker
    >>> tracker = Tracker(Hessian(lambda x: ((x * w) ** 4).sum(1).mean(), [w], [torch.ones(8, 2)]))
    >>> round(float(tracker.update(rate=0.1).values), 3)
    12.0
    >>> w.data.mul_(0.9)
    tensor([0.9000, 0.9000])
    >>> round(float(tracker.update(rate=0.1).values), 3), tracker.history[-1].limit
    (9.72, 20.0)

    """

    def __init__(
        self,
        source: Any,
        k: int = 1,
        *,
        rtol: float | None = None,
        points: int | None = None,
        budget: int | None = None,
        memory: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.source: Source | None = as_source(source)
        self.plan = planned(self.source, k, rtol, points, None, budget, memory)
        generator_on(generator)
        self._generator: torch.Generator | None = generator or torch.Generator().manual_seed(0)
        self._last: Spectrum | None = None
        self._anchor: Anchor | None = None
        self._row = 0  # warm updates since the last fresh one
        self.history: list[Moment] = []

    @full_precision
    def update(self, rate: Rate = None, *, step: int | None = None) -> Spectrum:
        """The spectrum at the present parameters.

        `rate` is the learning rate, a number or a function that returns it: 2/rate is then shown with the eigenvalues. `step`
        is a number for the time axis; by default updates are counted.
        """
        if self.source is None:
            raise ValueError("this tracker was pickled, which leaves its loss behind: it shows its history, no more")
        eta = (
            None if rate is None else finite_number(rate() if callable(rate) else rate, "rate", least=0.0, strict=True)
        )
        cost = Cost(self.source)
        found, doubt = self._warm(cost) if self._row < IN_A_ROW else (None, "many warm updates in a row")
        found = found or self._fresh(self.source, cost)
        self._row = self._row + 1 if found.stopped == WARM else 0
        self._last = found
        self.history.append(_moment(found, len(self.history) if step is None else step, eta, doubt))
        return found

    def _warm(self, cost: Cost) -> tuple[Spectrum | None, str]:
        """A warm update, if there is an anchor and it is valid; otherwise None, and the reason."""
        if self._anchor is None:
            return None, "the first" if self._last is None else "not a source of mini-batches"
        errors, vectors, doubt = self._anchor.moved()
        if doubt is None and self.plan.rtol is not None and width_of(errors, self.plan.k) > self.plan.rtol:
            doubt = "wider than the tolerance"
        if doubt is not None:
            return None, doubt
        return as_spectrum(errors, vectors, cost, 0, WARM, self._anchor.source, self._anchor.bytes), ""

    def _fresh(self, source: Source, cost: Cost) -> Spectrum:
        """A fresh spectrum, started halfway between the last vectors and a random one, so that no direction is missed."""
        start = unit(normal(source.size, like=source.like, generator=self._generator))
        if self._last is not None:
            start = start + unit(self._last.vectors.sum(1))
        *_, last = rounds(Task(source, self.plan, start))
        self._anchor = None  # free its memory before the next anchor takes as much
        if isinstance(source, BatchSource):
            self._anchor = Anchor(source, last.krylov, last.errors, self.plan.k)
        return as_spectrum(last.errors, last.vectors, cost, last.number, last.stopped, source, last.krylov.bytes)

    def as_dict(self) -> dict[str, list[Any]]:
        """Columns of the history, as lists of numbers."""
        columns: dict[str, list[Any]] = {"step": [m.step for m in self.history]}
        for i in range(self.plan.k):
            for name in ("values", "std", "low", "high"):
                columns[f"{name.removesuffix('s')}/{i + 1}"] = [getattr(m, name)[i] for m in self.history]
        for name in ("rate", "limit", "products", "data_points", "warm"):
            columns[name] = [getattr(m, name) for m in self.history]
        return columns

    def to_pandas(self) -> Any:
        """The history as a DataFrame, one row per update; needs pandas."""
        return _draw.frame(self.as_dict())

    def plot(self, ax: Any = None) -> Any:
        """Plot eigenvalues over time with their 95 % intervals, and 2/η if rates were given; needs matplotlib."""
        ax, steps = _draw.axes(ax), [m.step for m in self.history]
        for i, colour in zip(range(self.plan.k), _draw.COLOURS * self.plan.k):
            value, low, high = ([getattr(m, n)[i] for m in self.history] for n in ("values", "low", "high"))
            _draw.band(ax, steps, value, low, high, f"λ{i + 1}, 95 % interval", colour)
        limits = [(m.step, m.limit) for m in self.history if m.limit is not None]
        if limits:
            ax.plot(*zip(*limits), "--", color=_draw.INK, linewidth=1.2, label="2/η")
        ax.set(xlabel="step", ylabel="curvature")
        ax.legend(frameon=False)
        return ax

    def __repr__(self) -> str:
        if not self.history:
            return f"Tracker(k = {self.plan.k}, no update yet)"
        last, warm = self.history[-1], sum(m.warm for m in self.history)
        return (
            f"Tracker({_draw.short(last.values)} at step {last.step}; {len(self.history)} updates, {warm} of them warm, "
            f"{sum(m.products for m in self.history)} products)"
        )

    def _repr_html_(self) -> str:
        shown = self.history[-20:]
        rows = [[str(m.step), *map(_cell, m.values, m.low, m.high), _limit(m), str(m.products)] for m in shown]
        names = [f"λ{i + 1}, 95 % interval" for i in range(self.plan.k)]
        return _draw.table(repr(self), ["step", *names, "2/η", "products"], rows)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles without source, kept data and generator."""
        return {**self.__dict__, "source": None, "_anchor": None, "_last": None, "_generator": None}


def unit(v: Tensor) -> Tensor:
    """v/|v|."""
    length: Tensor = torch.linalg.vector_norm(v)
    return v / length.clamp(min=torch.finfo(v.dtype).tiny)


def _moment(found: Spectrum, step: int, rate: float | None, why: str) -> Moment:
    values, std, low, high = (tuple(t.tolist()) for t in (found.values, found.std, *found.interval(0.95)))
    return Moment(step, values, std, low, high, rate, found.products, found.data_points, found.stopped == WARM, why)


def _cell(value: float, low: float, high: float) -> str:
    return f"{value:.4g} ({low:.4g} … {high:.4g})"


def _limit(m: Moment) -> str:
    return "" if m.limit is None else f"{m.limit:.4g}"
