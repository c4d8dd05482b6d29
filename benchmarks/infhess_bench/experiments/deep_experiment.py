"""The paper's deep-learning experiment: its net on CIFAR-10, batch 32, initial rates over four orders of magnitude."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path

import torch
from torch import nn

from infhess._files import atomic
from infhess.optim import Preconditioned, RateReport, Report
from infhess_bench.experiments.convex_experiment import named
from infhess_bench.harness import Job, Row, Training
from infhess_bench.harness.methods import paper_optimizer_for_nets
from infhess_bench.problems import CountedStream, Data, NetProblem, Shuffled, paper_net, seeded
from infhess_bench.problems.features import cifar_images

EXPERIMENT, BATCH, L2 = "reproduce-deep", 32, 0.01
STARTS = ("default", "xavier")
SGD, PAPER, STEP, ONLINE = "sgd", "paper", "paper, step length alone", "infhess, online"
# Evaluated after each epoch, one row each: (loss, metric).
TRAIN, TEST, RATE = "train", "test", "rate"


@dataclass(frozen=True)
class NetSize:
    """How much of the experiment to run."""

    name: str
    width: float
    images: int
    tested: int
    epochs: int
    rates: tuple[float, ...]
    seeds: int
    online: tuple[float, ...]


SIZES = {
    "quick": NetSize("quick", 0.15, 2_000, 1_000, 2, (1e-3, 1e-1), 1, (1e-3,)),
    "default": NetSize("default", 0.5, 5_000, 2_000, 4, (1e-4, 1e-3, 1e-2, 1e-1), 3, (1e-4, 1e-1)),
    "full": NetSize("full", 1.0, 50_000, 10_000, 250, (1e-4, 1e-3, 1e-2, 1e-1), 3, (1e-4, 1e-1)),
}


def jobs(size: NetSize, seeds: Sequence[int], folder: Path) -> Iterator[Job]:
    """One run per initialisation, method, rate and seed."""
    for start, seed, method in product(STARTS, seeds, (SGD, PAPER, STEP, ONLINE)):
        for rate in size.online if method == ONLINE else size.rates:
            template = Row(named(EXPERIMENT, size.name), start, name_of(method, rate, TRAIN), seed, BATCH)
            yield Job(template, run, (size, method, rate, folder / "unfinished"))


def name_of(method: str, rate: float, what: str) -> str:
    """The name of a curve."""
    return f"{method}, rate {rate:g}: {what}"


def run(template: Row, size: NetSize, method: str, rate: float, folder: Path) -> list[Row]:
    """Train; after each epoch record losses, accuracies and the rate in use, and write a checkpoint."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    xavier = template.problem == "xavier"
    problem = NetProblem(
        lambda: paper_net(size.width, xavier=xavier).to(device), lambda: images(size, device), batch=BATCH, l2=L2
    )
    training = NetTraining(problem, template, method, rate)
    name = f"{template.problem}-{template.seed}-{method}-{rate:g}.pt"
    checkpoint = folder / name.replace(", ", "-").replace(" ", "-")
    rows = training.resume(checkpoint)
    while training.epoch < size.epochs and not training.dead:
        training.train_epoch()
        rows += training.evaluated(*problem.both)
        training.save(checkpoint, rows)
    checkpoint.unlink(missing_ok=True)
    return rows


def images(size: NetSize, device: str) -> tuple[Data, Data]:
    """Training and test images on a device."""
    (x, y), (tx, ty) = cifar_images(size.images, size.tested)
    return (x.to(device), y.to(device)), (tx.to(device), ty.to(device))


class NetTraining(Training):
    """Training by epochs, resumed from a checkpoint bit for bit.

    The paper's method estimates at the start of every epoch except the first; in the variant with its step length alone, SGD
    uses that step, and the directions are discarded.
    """

    def __init__(self, problem: NetProblem, template: Row, method: str, rate: float) -> None:
        self.generator = torch.Generator().manual_seed(template.seed)
        self.batches = Shuffled(problem.data, BATCH, self.generator)
        with seeded(template.seed):
            super().__init__(problem, CountedStream(self.batches), lambda p: torch.optim.SGD(p, lr=rate))
        self.template, self.method, self.rate, self.dead = template, method, rate, False
        self.epoch, self.seconds, self.estimating, self.in_use = 0, 0.0, 0.0, rate
        weights = list(self.model.parameters())
        self.estimator = Preconditioned(self.optimizer) if method == ONLINE else paper_optimizer_for_nets(weights, rate)
        if method in (PAPER, ONLINE):
            self.optimizer = self.estimator

    def train_epoch(self) -> None:
        """All images once."""
        began = time.perf_counter()
        if self.method in (PAPER, STEP) and self.epoch:
            self._estimate()
        for _ in range(self.stream.population // BATCH):
            self.step()
        self.dead = not all(bool(torch.isfinite(p).all()) for p in self.model.parameters())
        self.seconds += time.perf_counter() - began
        self.epoch += 1

    def _estimate(self) -> None:
        stream = CountedStream(self.batches)
        try:
            report = self.estimator.update(self.loss, stream)
        except ValueError:  # the net is dead, or its curvature is not finite: keep the last estimate
            return
        self.stream.points += stream.points
        self.count(report)
        if self.method == STEP:
            self.optimizer.param_groups[0]["lr"] = report.step

    def observe(self, batch: Data) -> None:
        """Called between backward and step."""
        if self.method == ONLINE:
            self.count(self.estimator.observe(self.loss, batch))

    def count(self, report: Report | RateReport | None) -> None:
        """Record products, seconds of estimates, and the resulting rate."""
        super().count(report)
        if isinstance(report, Report):
            self.estimating, self.in_use = self.estimating + report.seconds, report.step

    def evaluated(self, train: Data, test: Data) -> list[Row]:
        """Objective and accuracy on as many training images as test images, loss and accuracy on these, and the rate."""
        n = len(test[0])
        penalty = L2 / 2 * float(sum(p.detach().square().sum() for p in self.model.parameters()))
        loss, accuracy = self._measured((train[0][:n], train[1][:n]))
        share = self.estimating / max(self.seconds, 1e-9)
        found = {TRAIN: (loss + penalty, accuracy), TEST: self._measured(test), RATE: (self.in_use, share)}
        now = replace(self.template, data_points=self.stream.points, seconds=self.seconds)
        now, name = replace(now, products=self.reported_products), partial(name_of, self.method, self.rate)
        return [replace(now, method=name(w), loss=x if x == x else inf, metric=y) for w, (x, y) in found.items()]

    def _measured(self, data: Data) -> tuple[float, float]:
        with torch.no_grad():
            outputs = torch.cat([self.model(part) for part in data[0].split(500)])  # type: ignore[no-untyped-call]
            right = (outputs.argmax(1) == data[1]).float().mean()
            return float(nn.functional.cross_entropy(outputs, data[1])), float(right)

    def save(self, path: Path, rows: Sequence[Row]) -> None:
        """Write all that is needed to resume."""
        path.parent.mkdir(parents=True, exist_ok=True)
        numbers = [self.epoch, self.reported_products, self.seconds, self.estimating, self.in_use]
        state = {
            "model": self.model.state_dict(), "optimizers": [o.state_dict() for o in (self.optimizer, self.estimator)],
            "generator": self.generator.get_state(), "rows": [list(vars(r).values()) for r in rows],
            "points": self.stream.points, "numbers": numbers,
        }  # fmt: skip
        with atomic(path) as temporary:
            torch.save(state, temporary)

    def resume(self, path: Path) -> list[Row]:
        """Restore an interrupted run, and return its rows so far; an empty list if there is none."""
        if not path.exists():
            return []
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip((self.optimizer, self.estimator), state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        self.epoch, self.reported_products, self.seconds, self.estimating, self.in_use = state["numbers"]
        self.stream.points = state["points"]
        return [Row(*values) for values in state["rows"]]
