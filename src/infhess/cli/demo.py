"""The demo on scikit-learn's digits: a convex problem, a net, and the net's sharpness with error bars."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus
from torch.optim import SGD, Adam

from infhess.cli.rows import Row
from infhess.cli.shuffled import Data, Shuffled, objective, seeded
from infhess.curvature import Hessian
from infhess.example import digits
from infhess.optim import Preconditioned, RateFree
from infhess.spectra import spectrum

EXPERIMENT, CONVEX, NET, SHARPNESS = "demo", "digits 3 against 5", "a net on digits", "sharpness of that net"
INFHESS = "infhess, no learning rate"
BATCH, POINTS, STEPS, TOP = 32, 22_000, 600, 5
SGD_RATES = tuple(10 ** (i / 2) for i in range(-5, 4))
ADAM_RATES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
EVALUATED = 1000  # points on which the training loss is evaluated
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class ConvexProblem:
    """Logistic regression with a little regularisation: labels ±1, and a linear model that starts at zero."""

    data: Data
    l2: ClassVar[float] = 1e-4
    points: ClassVar[int] = POINTS  # that a run reads
    spacing: ClassVar[float] = 1.07  # a row each time that so many times more points were read
    price: ClassVar[float] = 0.0  # of a product with the Hessian, in gradients

    def model(self) -> nn.Module:
        """The model at its start."""
        x = self.data[0]
        model = nn.Linear(x.shape[1], 1, bias=False, dtype=x.dtype)
        nn.init.zeros_(model.weight)
        return model

    def loss(self, model: nn.Module) -> Callable[[Data], Tensor]:
        """Of a batch: the mean of −log σ(y f), plus ½ l2 |w|²."""
        return objective(lambda f, y: softplus(-y * f[:, 0]).mean(), model, self.l2)

    def tested(self, model: nn.Module) -> float:
        """The share of images on the right side."""
        x, y = self.data
        return float((model(x)[:, 0] * y > 0).double().mean())

    def solved(self) -> nn.Module:
        """The minimiser, by Newton's method."""
        (x, y), model = self.data, self.model()
        (w,) = model.parameters()
        for _ in range(20):
            p = torch.sigmoid(-y * model(x)[:, 0]).detach()
            g = self.l2 * w.detach()[0] - x.mT @ (p * y) / len(x)
            H = (x.mT * (p * (1 - p))) @ x / len(x) + self.l2 * torch.eye(len(g), dtype=x.dtype)
            w.data -= torch.linalg.solve(H, g)
        return model


@dataclass(frozen=True)
class NetProblem:
    """A net of 1,210 weights, few enough to compute the exact Hessian; cross-entropy, and a little regularisation."""

    data: Data
    test: Data
    l2: ClassVar[float] = 1e-3
    points: ClassVar[int] = BATCH * STEPS
    spacing: ClassVar[float] = 1.25
    price: ClassVar[float] = 2.5

    def model(self) -> nn.Module:
        """The net at its start, from torch's global generator."""
        return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def loss(self, model: nn.Module) -> Callable[[Data], Tensor]:
        """Of a batch: the mean of the cross-entropy, plus ½ l2 |w|²."""
        return objective(cross_entropy, model, self.l2)

    def tested(self, model: nn.Module) -> float:
        """The loss on held-out images."""
        return float(cross_entropy(model(self.test[0]), self.test[1]))


Problem = ConvexProblem | NetProblem


def convex_problem() -> ConvexProblem:
    """365 images of 8×8 pixels and a constant."""
    images, labels = digits()
    keep = (labels == 3) | (labels == 5)
    x = images[keep].reshape(-1, 64) / 16
    return ConvexProblem((torch.cat([x, x.new_ones(len(x), 1)], 1), torch.where(labels[keep] == 3, 1.0, -1.0).double()))


def net_problem() -> NetProblem:
    """All ten digits: 1,400 images to train on, 397 to test on."""
    images, y = digits()
    x = images.reshape(-1, 64).float() / 16
    return NetProblem((x[:1400], y[:1400]), (x[1400:], y[1400:]))


class Run:
    """An optimizer on a problem, step by step."""

    def __init__(self, problem: Problem, make: MakeOptimizer, seed: int) -> None:
        self.model = problem.model()
        self.loss, self.optimizer = problem.loss(self.model), make(list(self.model.parameters()))
        self._average = copy.deepcopy(self.model)
        self._steps, self.points, self.product_points = 0, 0, 0
        self._batches = _endless(Shuffled(problem.data, BATCH, torch.Generator().manual_seed(seed)))

    def step(self) -> None:
        """Read a batch, and move. infhess looks at the batch between backward and step."""
        batch = next(self._batches)
        self.optimizer.zero_grad()
        self.loss(batch).backward()  # type: ignore[no-untyped-call]
        if isinstance(self.optimizer, Preconditioned | RateFree):
            report = self.optimizer.observe(self.loss, batch)
            self.product_points += report.product_points if report else 0
        self.optimizer.step()
        self.points += len(batch[0])
        with torch.no_grad():
            for mean, w in zip(self._average.parameters(), self.model.parameters()):
                mean.lerp_(w, 4 / (self._steps + 4))
        self._steps += 1

    @property
    def products(self) -> int:
        """Products with the Hessian, in units of those with a batch."""
        return -(-self.product_points // BATCH)

    def averaged(self) -> nn.Module:
        """The average of the iterates, which favours recent ones: w̄ += 4/(t+4) (w − w̄). RateFree has its own."""
        if isinstance(self.optimizer, RateFree):
            with self.optimizer.averaged():
                return copy.deepcopy(self.model)
        return self._average


def _endless(batches: Shuffled) -> Iterator[Data]:
    while True:
        yield from batches


def value(problem: Problem, model: nn.Module, data: Data) -> float:
    """The loss of a model."""
    with torch.no_grad():
        return float(problem.loss(model)(data))


def curve(run: Run, problem: Problem, template: Row, shown: Callable[[], nn.Module]) -> Iterator[Row]:
    """Rows of a run until its points are spent or it has diverged: training loss, and test as the metric, of `shown`."""
    evaluated = problem.data[0][:EVALUATED], problem.data[1][:EVALUATED]
    mark, seconds, limit = 0.0, 0.0, 1e3 * value(problem, run.model, evaluated)
    while True:
        start = time.process_time()
        run.step()
        seconds += time.process_time() - start
        done = run.points + problem.price * run.products * BATCH >= problem.points
        if run.points < mark and not done:
            continue
        mark, model = problem.spacing * run.points, shown()
        with torch.no_grad():
            metric = problem.tested(model)
        loss = value(problem, model, evaluated)
        loss = float(f"{loss:.10g}") if math.isfinite(loss) else math.inf
        now = replace(template, data_points=run.points, products=run.products, seconds=float(f"{seconds:.4g}"))
        yield replace(now, loss=loss, metric=metric)
        if done or loss >= limit:
            return


def rows(seed: int) -> Iterator[Row]:
    """All three parts."""
    yield from _convex(seed)
    yield from _net(seed)


def _convex(seed: int) -> Iterator[Row]:
    """The gap of the averaged iterates, and their accuracy: SGD at nine rates, and infhess."""
    problem = convex_problem()
    best, start = (value(problem, model, problem.data) for model in (problem.solved(), problem.model()))
    methods: dict[str, MakeOptimizer] = {f"sgd, rate {rate:.2g}": partial(SGD, lr=rate) for rate in SGD_RATES}
    for name, make in (methods | {INFHESS: lambda p: Preconditioned(SGD(p, lr=1.0))}).items():
        with seeded(seed):
            run = Run(problem, make, seed)
            found = list(curve(run, problem, Row(EXPERIMENT, CONVEX, name, seed, BATCH), run.averaged))
        yield from (replace(row, loss=(row.loss - best) / (start - best)) for row in found)


def _net(seed: int) -> Iterator[Row]:
    """Training and test loss: Adam at five rates, and infhess; then the sharpness of the solution of infhess."""
    problem = net_problem()
    methods: dict[str, MakeOptimizer] = {f"Adam, rate {rate:g}": partial(Adam, lr=rate) for rate in ADAM_RATES}
    for name, make in (methods | {INFHESS: partial(RateFree, scaling="kronecker")}).items():
        with seeded(seed):
            run = Run(problem, make, seed)
            shown = run.averaged if name == INFHESS else lambda run=run: run.model
            yield from list(curve(run, problem, Row(EXPERIMENT, NET, name, seed, BATCH), shown))
    yield from _sharpness(problem, run.averaged(), seed)


def _sharpness(problem: NetProblem, model: nn.Module, seed: int) -> Iterator[Row]:
    """The largest eigenvalues from mini-batches with 95 % intervals, and the exact ones on all the data."""
    loss, g = problem.loss(model), torch.Generator().manual_seed(seed)
    source = Hessian(loss, model.parameters(), Shuffled(problem.data, BATCH, g))
    found = spectrum(source, TOP, generator=g)
    low, high = found.interval(0.95)
    exact = eigenvalues(Hessian(loss, model.parameters(), [problem.data]))
    for name, values in (("value", found.values), ("low", low), ("high", high), ("exact", exact)):
        for i, value in enumerate(values.tolist()[:TOP]):
            template = Row(EXPERIMENT, f"{SHARPNESS}/eigenvalue-{i + 1}", name, seed, BATCH, metric=value)
            yield replace(template, data_points=found.data_points, products=found.products)


def eigenvalues(source: Hessian) -> Tensor:
    """All eigenvalues, descending, from the full matrix."""
    matrix = torch.stack([source.matvec(unit) for unit in torch.eye(source.size)])
    values: Tensor = torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0)
    return values
