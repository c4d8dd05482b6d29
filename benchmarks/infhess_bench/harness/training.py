"""Training runs that count what they read: a method applied to a problem, and its curve as rows."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from infhess.cli.rows import Row
from infhess.optim import Preconditioned, RateReport, Report
from infhess_bench.problems.convex_problems import ConvexProblem
from infhess_bench.problems.net_problems import NetProblem, rounded
from infhess_bench.problems.shuffled import CountedStream, Data, Shuffled, seeded

AVERAGED = ", averaged"
# Additional curves of a method. The learning rate in use: loss is the rate, metric the standard deviation of its logarithm.
# Averaged iterates: |z − x|/|x| as the loss, the root mean square of the scaled gradient as the metric.
# At the end: training and test accuracy, as loss and metric; and wall-clock seconds, as the loss.
RATE, ITERATES, ACCURACY, WALL = BESIDE = (": rate", ": iterates", ": accuracy", ": wall seconds")


Problem = ConvexProblem | NetProblem


class Run:
    """A method applied to a problem: `step` reads whatever it needs from the stream.

    `models` are the outcomes by name; `products` counts products in units of those with a batch of the stream's size.
    """

    def __init__(self, problem: Problem, stream: CountedStream) -> None:
        self.model: nn.Module = problem.model()
        self.loss, self.stream, self.products = problem.loss(self.model), stream, 0

    @property
    def models(self) -> dict[str, nn.Module]:
        """The present outcomes."""
        return {"": self.model}

    def step(self) -> None:
        """Read a batch, and move."""
        raise NotImplementedError


Method = Callable[[Any, CountedStream], Run]
Models = Sequence[str]  # names of outcomes
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Training(Run):
    """A torch optimizer in an ordinary loop; the last iterate, and the average of iterates.

    The average favours recent iterates: w̄ += 4/(t+4) (w − w̄). Problems with `averages = False` have none.
    """

    average: nn.Module | None = None
    averaged_steps = 0

    def __init__(self, problem: Problem, stream: CountedStream, make: MakeOptimizer) -> None:
        super().__init__(problem, stream)
        self.product_points, self.reported_products = 0, 0  # the latter regardless of batch size
        if problem.averages:
            self.average = copy.deepcopy(self.model)
        self.optimizer = make(list(self.model.parameters()))

    @property
    def models(self) -> dict[str, nn.Module]:
        """The last iterate, and the average."""
        return super().models | ({AVERAGED: self.average} if self.average else {})

    def step(self) -> None:
        """One batch, one step."""
        batch = next(self.stream)
        self.optimizer.zero_grad()
        self.loss(batch).backward()  # type: ignore[no-untyped-call]
        self.observe(batch)
        self.optimizer.step()
        if self.average:
            self._add_to(self.average)

    @torch.no_grad()
    def _add_to(self, average: nn.Module) -> None:
        share = 4 / (self.averaged_steps + 4)
        torch._foreach_lerp_(list(average.parameters()), list(self.model.parameters()), share)
        self.averaged_steps += 1

    def observe(self, batch: Data) -> None:
        """Called between backward and step."""

    def count(self, report: Report | RateReport | None) -> None:
        """Count products in units of those with a batch of the stream's size."""
        if report:
            self.product_points += report.product_points
            self.reported_products += report.products
            self.products = -(-self.product_points // self.stream.size)


class Updated(Training):
    """Calls `update` at the start, and whenever it is due."""

    optimizer: Preconditioned
    once = False

    def step(self) -> None:
        """One batch, after an estimate if one is due."""
        if self.due:
            self.count(self.optimizer.update(self.loss, self.stream))
        super().step()

    @property
    def due(self) -> bool:
        """Whether an estimate is due."""
        return not self.products or (not self.once and self.optimizer.due)


class UpdatedOnce(Updated):
    """Calls `update` only at the start, as in the paper."""

    once = True


class Online(Training):
    """Calls `observe` with each batch: curvature probes and step length are automatic."""

    optimizer: Preconditioned

    def observe(self, batch: Data) -> None:
        """Called between backward and step."""
        self.count(self.optimizer.observe(self.loss, batch))


def curve(
    problem: Problem, method: Method, template: Row, budget: int, models: Models = (), spacing: float | None = None
) -> list[Row]:
    """Rows of one run until its budget is spent: loss over all the data, metric on held-out data.

    Each outcome of the method is a curve of its own; if `models` is given, only those, a single one under the method's name.

    A run whose loss is not finite, or above the problem's limit, has diverged and ends. Seconds exclude evaluations; they
    are CPU seconds, which depend less on other work on the machine.
    """
    shuffled = Shuffled(problem.data, template.batch_size, torch.Generator().manual_seed(template.seed))
    stream, limit, rows = CountedStream(shuffled, budget), problem.limit(), []
    longest = budget / problem.parts if isinstance(problem, NetProblem) and spacing is None else math.inf
    with seeded(template.seed):  # some methods draw from the global generator
        for run, clock in stops(problem, method, stream, (spacing or problem.spacing, longest)):
            now = replace(template, data_points=stream.points, products=run.products, seconds=float(f"{clock.cpu:.4g}"))
            outcomes = run.models  # recomputed at each access
            shown = {"": outcomes[models[0]]} if len(models) == 1 else {m: outcomes[m] for m in models or outcomes}
            found = [_evaluated(problem, model, now, name) for name, model in shown.items()]
            rows += [*found, *_traces(run, now)]
            if not any(row.loss < limit for row in found):
                break
    if isinstance(problem, NetProblem):
        rows += _at_the_end(problem, next(iter(shown.values())), now, clock)
    return rows


@dataclass
class Clock:
    """Seconds spent within its blocks: wall-clock time and CPU time."""

    wall: float = 0.0
    cpu: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time the block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


def stops(
    problem: Problem, method: Method, stream: CountedStream, spacing: tuple[float, float]
) -> Iterator[tuple[Run, Clock]]:
    """Yields the run and its clock each time that enough was read since the last stop, as a factor or as a number of points."""
    clock, mark, done = Clock(), 0.0, False
    with clock.running():
        run = method(problem, stream)
    while not done:
        with clock.running():
            run.step()
        done = stream.points + problem.price * run.products * stream.size >= stream.budget
        if stream.points >= mark or done:
            mark = min(stream.points * spacing[0], stream.points + spacing[1])
            yield run, clock


def _evaluated(problem: Problem, model: nn.Module, now: Row, name: str) -> Row:
    loss = problem.value(model)
    loss = float(f"{loss:.10g}") if math.isfinite(loss) else math.inf
    return replace(now, method=now.method + name, loss=loss, metric=problem.tested(model))


def _traces(run: Run, now: Row) -> list[Row]:
    """Rows of the learning rate in use and of the averaged iterates, if the method reports them."""
    found = {RATE: getattr(run, "learning_rate", (0.0, 0.0)), ITERATES: getattr(run, "iterates", (0.0, 0.0))}
    return [
        replace(now, method=now.method + name, loss=rounded(a), metric=rounded(b))
        for name, (a, b) in found.items()
        if a > 0
    ]


def _at_the_end(problem: NetProblem, model: nn.Module, now: Row, clock: Clock) -> list[Row]:
    """Accuracy, if the problem has one, and wall-clock seconds."""
    found = [(WALL, clock.wall, math.nan), *((ACCURACY, *both) for both in problem.accuracies(model))]
    return [replace(now, method=now.method + name, loss=rounded(x), metric=y) for name, x, y in found]


def ends(rows: Sequence[Row], budget: int = 0) -> list[Row]:
    """The rows at the end of a curve, one per outcome."""
    return [r for r in rows if r.data_points == rows[-1].data_points and not r.method.endswith(BESIDE)]
