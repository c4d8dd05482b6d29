"""What the optimizers report: the learning rate with its uncertainty, and what an estimate found and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from statistics import NormalDist
from typing import Any

from torch import Tensor

from infhess import _draw

SKIPPED = "not made: the gradient held NaN or infinity"


def steps_were(count: float, what: str) -> str:
    """A note on steps since the last report.

    >>> steps_were(1, SKIPPED), steps_were(2, "shortened")
    ('1 step was not made: the gradient held NaN or infinity', '2 steps were shortened')
    """
    return f"{count:.0f} {'step was' if count == 1 else 'steps were'} {what}"


@dataclass(frozen=True, repr=False)
class Report:
    """The curvature behind a preconditioner, its step, and the cost of both.

    Attributes:
        values: eigenvalues of the curvature, descending; in the base's own scaling if it has one.
        std: their standard deviations due to mini-batch noise; NaN if unknown.
        step: factor on P²g: 1/λmax(P²B) if it is measured, NaN if the base keeps its learning rate.
        products: Hessian-vector products on mini-batches.
        product_points: data points in these products, counted once per product.
        data_points: data points read.
        seconds: wall time.
        notes: sentences for the user.
        step_std: the standard deviation of the step due to noise in the probes; only with `observe` in nets, else NaN.

    >>> import torch, infhess
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), rank=2)
    >>> report = opt.update(lambda x: (x * w).square().mean(), [torch.tensor([[2.0, 1.0]])])
    >>> [round(v, 3) for v in report.values.tolist()], report.products > 0
    ([4.0, 1.0], True)

    """

    values: Tensor
    std: Tensor
    step: float
    products: int
    data_points: int
    seconds: float
    notes: tuple[str, ...] = ()
    product_points: int = 0
    step_std: float = math.nan

    def __repr__(self) -> str:
        shown = _draw.short(self.values.tolist(), 3)
        cost = f"{self.products} products, {self.data_points} data points, {self.seconds:.2g} s"
        return f"Report(step {self.step:.4g}; {len(self.values)} values: {shown}; {cost}; {len(self.notes)} notes)"

    def _repr_html_(self) -> str:
        rows = [[f"{v:.4g}", f"{s:.2g}"] for v, s in zip(self.values.tolist(), self.std.tolist())]
        return _draw.table(repr(self), ["value", "std"], rows) + "".join(f"<p>{escape(n)}</p>" for n in self.notes)

    def to_pandas(self) -> Any:
        """A DataFrame with one row per eigenvalue; needs pandas."""
        return _draw.frame({"value": self.values.tolist(), "std": self.std.tolist()})

    def plot(self, ax: Any = None) -> Any:
        """Plot the eigenvalues with bars of two standard deviations; needs matplotlib. Returns the axes."""
        values, half = self.values.tolist(), (2 * self.std.nan_to_num()).tolist()
        low, high = ([v + sign * h for v, h in zip(values, half)] for sign in (-1, 1))
        ax = _draw.bars(_draw.axes(ax), values, low, high, "± 2 std")
        ax.set(xlabel="eigenvalue number", ylabel="curvature")
        return ax

    def as_dict(self) -> dict[str, float]:
        """Numbers by name, for TensorBoard or any logger."""
        row = {"step": self.step, **_cost(self)}
        row |= {"step/std": self.step_std} if self.step_std == self.step_std else {}
        for i, (value, std) in enumerate(zip(self.values.tolist(), self.std.tolist()), 1):
            row |= {f"value/{i}": value} | ({f"std/{i}": std} if std == std else {})
        return row


@dataclass(frozen=True)
class Rate:
    """The learning rate in use; `std` is its standard deviation due to noise in the probes. NaN until curvature was seen.

    >>> Rate(0.01, 0.002)
    Rate(0.01 ± 0.002)
    """

    value: float
    std: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The interval at this level, with a normal distribution for the logarithm."""
        if self.value == 0:  # the schedule has turned it off
            return 0.0, 0.0
        width = NormalDist().inv_cdf((1 + level) / 2) * self.std / self.value
        return self.value * math.exp(-width), self.value * math.exp(width)

    def times(self, factor: float) -> Rate:
        """The same rate, multiplied by a known factor."""
        return Rate(self.value * factor, self.std * factor)

    def __float__(self) -> float:
        """The value without its uncertainty."""
        return self.value

    def __repr__(self) -> str:
        """Value and standard deviation."""
        return f"Rate({self.value:.4g} ± {self.std:.2g})"


@dataclass(frozen=True)
class RateReport:
    """A curvature probe: the learning rate with its uncertainty, the rate that curvature allows, the cost, and notes.

    `rate` is that of the step the probe belongs to, `lr` included. `allowed` is what curvature allows: the rate grows towards
    it, and is below it where steps are bounded by a share of |w|; `lr` has no part in it.

    >>> import torch, infhess
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> opt = infhess.RateFree([w], scaling="diagonal")
    >>> w.square().sum().backward()
    >>> report = opt.observe(lambda batch: w.square().sum(), torch.ones(1))
    >>> report.products, report.rate.value > 0, "rate" in report.as_dict()
    (1, True, True)
    """

    rate: Rate
    allowed: float
    products: int
    product_points: int
    seconds: float
    notes: tuple[str, ...] = ()
    data_points: int = 0  # training reads all batches anyway

    def as_dict(self) -> dict[str, float]:
        """Numbers by name, for TensorBoard or any logger."""
        low, high = self.rate.interval()
        rates = {"rate": self.rate.value, "rate/low": low, "rate/high": high, "rate/allowed": self.allowed}
        return rates | _cost(self)

    def plot(self, ax: Any = None) -> Any:
        """Plot the rate with its 95 % interval, and the rate that curvature allows; needs matplotlib. Returns the axes."""
        ax, (low, high) = _draw.axes(ax), self.rate.interval()
        _draw.bars(ax, [self.rate.value], [low], [high], "rate, 95 % interval")
        ax.axhline(self.allowed, color=_draw.INK, linestyle="--", linewidth=1.2, label="allowed by curvature")
        ax.set(ylabel="learning rate", xticks=[])
        ax.legend(frameon=False)
        return ax

    def _repr_html_(self) -> str:
        columns = self.as_dict()
        rows = [[f"{v:.4g}" for v in columns.values()]]
        return _draw.table(repr(self.rate), list(columns), rows) + "".join(f"<p>{escape(n)}</p>" for n in self.notes)


def _cost(report: Report | RateReport) -> dict[str, float]:
    numbers = {name: float(getattr(report, name)) for name in ("products", "product_points", "data_points", "seconds")}
    return numbers | {"notes": float(len(report.notes))}
