"""Training runs that count: methods at work on convex problems, and their curves as rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from infhess.experiments.rows import Row
from infhess.optim import Preconditioned, RateReport, Report
from infhess.problems.shuffled import Reading, Shuffled


class Problem(Protocol):
    """What methods are run on: a model, a loss of batches, and values over the data."""

    spacing: ClassVar[float]
    averages: ClassVar[bool]
    price: ClassVar[float]  # of a product, in gradients, where the budget is one of work; 0 where it is one of data

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """To train on."""

    def model(self) -> nn.Module:
        """At the start."""

    def loss(self, model: nn.Module) -> Callable[[tuple[Tensor, Tensor]], Tensor]:
        """Batch ↦ mean loss of the model."""

    def value(self, model: nn.Module) -> float:
        """The training objective."""

    def tested(self, model: nn.Module) -> float:
        """On data held back."""


class Run(Protocol):
    """A method at work on a problem: `step` reads from its stream whatever it needs.

    `models` are what it would hand over, by name; `products` counts products with the curvature of a batch of the stream's
    size.
    """

    products: int

    @property
    def models(self) -> dict[str, nn.Module]:
        """What would be handed over now."""

    def step(self) -> None:
        """Read, and move."""


Method = Callable[[Any, Reading], Run]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Training:
    """A torch optimizer in an ordinary loop; the last iterate and the average of iterates by torch's AveragedModel.

    The average weighs recent iterates more: w̄ += 4/(t+4) (w − w̄). Problems that do without have none.
    """

    average: AveragedModel | None = None

    def __init__(self, problem: Problem, reading: Reading, make: MakeOptimizer) -> None:
        self.model = problem.model()
        self.loss, self.reading, self.products, self.product_points = problem.loss(self.model), reading, 0, 0
        if problem.averages:
            self.average = AveragedModel(self.model, avg_fn=lambda mean, new, t: mean + 4 / (t + 4) * (new - mean))
        self.optimizer = make(list(self.model.parameters()))

    @property
    def models(self) -> dict[str, nn.Module]:
        """The last iterate, and the average."""
        return {"": self.model} | ({", averaged": self.average.module} if self.average else {})

    def step(self) -> None:
        """One batch, one step."""
        batch = next(self.reading)
        self.optimizer.zero_grad()
        self.loss(batch).backward()  # type: ignore[no-untyped-call]
        self.observe(batch)
        self.optimizer.step()
        if self.average:
            self.average.update_parameters(self.model)

    def observe(self, batch: tuple[Tensor, Tensor]) -> None:
        """Between backward and step."""

    def count(self, report: Report | RateReport | None) -> None:
        """Products, in those with a batch of the stream's size."""
        if report:
            self.product_points += report.product_points
            self.products = -(-self.product_points // self.reading.size)


class Updated(Training):
    """`update` at the start, and whenever it is due."""

    optimizer: Preconditioned

    def step(self) -> None:
        """One batch, after an estimate where one is due."""
        if not self.products or self.optimizer.due:
            self.count(self.optimizer.update(self.loss, self.reading))
        super().step()


class SelfDriving(Training):
    """`observe` with each batch."""

    optimizer: Preconditioned

    def observe(self, batch: tuple[Tensor, Tensor]) -> None:
        """Estimates, refreshes and the step length take care of themselves."""
        self.count(self.optimizer.observe(self.loss, batch))


def sgd(rate: float) -> Method:
    """Plain sgd."""
    return lambda problem, reading: Training(problem, reading, lambda p: torch.optim.SGD(p, lr=rate))


def printed(rate: float) -> Method:
    """Preconditioned sgd as printed: 16 products, rank 10, β = 1, α² = Σ₁/Σ_k times the rate of sgd."""

    def make(params: list[nn.Parameter]) -> Preconditioned:
        return Preconditioned(torch.optim.SGD(params, lr=rate), rank=10, steps=16, method="paper")

    return lambda problem, reading: UpdatedOnce(problem, reading, make)


class UpdatedOnce(Updated):
    """`update` at the start alone, as the paper has it."""

    def step(self) -> None:
        """One batch, after an estimate at the start."""
        if self.products:
            return Training.step(self)
        return super().step()


def updated(rank: int | None = None) -> Method:
    """Ours, by `update`; the rate does not matter."""
    return lambda problem, reading: Updated(
        problem, reading, lambda p: Preconditioned(torch.optim.SGD(p, lr=1.0), rank=rank)
    )


def self_driving() -> Method:
    """Ours, by `observe`; the rate does not matter."""
    return lambda problem, reading: SelfDriving(problem, reading, lambda p: Preconditioned(torch.optim.SGD(p, lr=1.0)))


def curve(problem: Problem, method: Method, template: Row, budget: int, only: str | None = None) -> list[Row]:
    """Rows of one run until its budget of data points is read: loss over all the data, metric on what was held back.

    All models that the method would hand over, each as a curve of its own; or the `only` one, under the method's name.

    A run whose loss is not finite, or a thousand times what it was at the start, has diverged and ends. Seconds are those of
    the run alone, without evaluations.
    """
    generator = torch.Generator().manual_seed(template.seed)
    reading = Reading(Shuffled(problem.data, template.batch_size, generator), budget)
    start, rows = problem.value(problem.model()), []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(template.seed)  # some methods draw from it
        for run, seconds in stops(problem, method, reading):
            models = run.models if only is None else {"": run.models[only]}
            now = replace(template, data_points=reading.points, products=run.products, seconds=float(f"{seconds:.4g}"))
            rows += [
                _evaluated(problem, model, replace(now, method=now.method + name)) for name, model in models.items()
            ]
            if not any(row.loss < 1e3 * start for row in rows[-len(models) :]):
                break
    return rows


def stops(
    problem: Problem, method: Method, reading: Reading, spacing: float | None = None
) -> Iterator[tuple[Run, float]]:
    """The run each time that enough was read since, and the seconds that it took so far."""
    spacing = spacing or problem.spacing
    began = time.perf_counter()
    run = method(problem, reading)
    seconds, mark = time.perf_counter() - began, 0.0
    done = False
    while not done:
        began = time.perf_counter()
        run.step()
        seconds += time.perf_counter() - began
        done = spent(problem, run, reading) >= reading.budget
        if reading.points >= mark or done:
            mark = reading.points * spacing
            yield run, seconds


def spent(problem: Problem, run: Run, reading: Reading) -> float:
    """Of the budget: data points read, and products at their price."""
    return reading.points + problem.price * run.products * reading.size


def _evaluated(problem: Problem, model: nn.Module, row: Row) -> Row:
    loss = problem.value(model)
    return replace(row, loss=float(f"{loss:.10g}") if math.isfinite(loss) else math.inf, metric=problem.tested(model))
