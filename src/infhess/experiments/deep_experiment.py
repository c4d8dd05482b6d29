"""The paper's deep-learning experiment: its net on CIFAR-10, batch 32, initial rates over four orders of magnitude."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from infhess._files import atomic
from infhess.experiments.convex_experiment import named
from infhess.harness.jobs import Job
from infhess.harness.methods import paper_optimizer_for_nets
from infhess.harness.rows import Row
from infhess.optim import Preconditioned, Report
from infhess.problems.features import cifar_images
from infhess.problems.nets import paper_net
from infhess.problems.shuffled import CountedStream, Data, Shuffled, seeded

EXPERIMENT, BATCH, L2 = "reproduce-deep", 32, 0.01
STARTS = ("default", "xavier")
SGD, PAPER, STEP, ONLINE = "sgd", "paper", "paper, step length alone", "infhess, online"
# What is evaluated after each epoch, one row each: (loss, metric).
TRAIN, TEST, RATE = "train", "test", "rate"


@dataclass(frozen=True)
class NetSize:
    """How much of it."""

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
    """One run for each initialisation, method, rate and seed."""
    for start in STARTS:
        for seed in seeds:
            for method in (SGD, PAPER, STEP, ONLINE):
                for rate in size.online if method == ONLINE else size.rates:
                    template = Row(named(EXPERIMENT, size.name), start, _name(method, rate, TRAIN), seed, BATCH)
                    yield Job(template, run, (size, method, rate, folder / "unfinished"))


def _name(method: str, rate: float, what: str) -> str:
    return f"{method}, rate {rate:g}: {what}"


def run(template: Row, size: NetSize, method: str, rate: float, folder: Path) -> list[Row]:
    """Train; after each epoch losses, accuracies, the rate in use, and a checkpoint to go on from."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = images(size, device)
    training = NetTraining(template, method, rate, size, train, device)
    name = f"{template.problem}-{template.seed}-{method}-{rate:g}.pt"
    checkpoint = folder / name.replace(", ", "-").replace(" ", "-")
    rows = training.resume(checkpoint)
    while training.epoch < size.epochs and not training.dead:
        training.train_epoch()
        rows += training.evaluated(train, test)
        training.save(checkpoint, rows)
    checkpoint.unlink(missing_ok=True)
    return rows


def images(size: NetSize, device: str) -> tuple[Data, Data]:
    """Training and test images on a device."""
    (x, y), (tx, ty) = cifar_images(size.images, size.tested)
    return (x.to(device), y.to(device)), (tx.to(device), ty.to(device))


class NetTraining:
    """A net, an optimizer and a stream of batches, that go on from a checkpoint bit for bit."""

    def __init__(self, template: Row, method: str, rate: float, size: NetSize, train: Data, device: str) -> None:
        self.template, self.method, self.rate, self.epoch, self.dead = template, method, rate, 0, False
        with seeded(template.seed):
            self.model = paper_net(size.width, xavier=template.problem == "xavier").to(device)
        base = torch.optim.SGD(self.model.parameters(), lr=rate)
        by_paper = method in (PAPER, STEP)
        weights = list(self.model.parameters())
        self.optimizer = paper_optimizer_for_nets(weights, rate) if by_paper else Preconditioned(base)
        self.plain = base if method == SGD else None
        self.generator = torch.Generator().manual_seed(template.seed)
        self.batches = Shuffled(train, BATCH, self.generator)
        self.points, self.products, self.seconds, self.estimating, self.in_use = 0, 0, 0.0, 0.0, rate

    def loss(self, batch: Data) -> Tensor:
        """Cross-entropy and ½ 0.01 |w|²."""
        penalty = torch.stack([p.square().sum() for p in self.model.parameters()]).sum()
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1]) + L2 / 2 * penalty

    def train_epoch(self) -> None:
        """All images once; the paper's method estimates at the start of every epoch except the first."""
        began = time.perf_counter()
        if self.method in (PAPER, STEP) and self.epoch:
            self._estimate()
        stepping = self.plain or self.optimizer
        for batch in self.batches:
            stepping.zero_grad()
            loss = self.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            if self.method == ONLINE:
                self._observe(batch)
            stepping.step()
            self.points += len(batch[0])
        self.dead = not bool(torch.isfinite(loss))
        self.seconds += time.perf_counter() - began
        self.epoch += 1

    def _estimate(self) -> None:
        """The paper's estimate; with the step alone its directions are thrown away."""
        stream = CountedStream(self.batches)
        try:
            report = self.optimizer.update(self.loss, stream)
        except ValueError:  # the net is dead, or its curvature is not finite: the last estimate stays
            return
        self.points += stream.points
        self._count(report)
        if self.method == STEP:
            self.plain = torch.optim.SGD(self.model.parameters(), lr=report.step)

    def _observe(self, batch: Data) -> None:
        report = self.optimizer.observe(self.loss, batch)
        if report:
            self._count(report)

    def _count(self, report: Report) -> None:
        self.products += report.products
        self.estimating += report.seconds
        self.in_use = report.step

    def evaluated(self, train: Data, test: Data) -> list[Row]:
        """Objective and accuracy on as many training images as there are to test, loss and accuracy on these, and the rate."""
        n = len(test[0])
        penalty = L2 / 2 * float(sum(p.detach().square().sum() for p in self.model.parameters()))
        loss, accuracy = self._measured((train[0][:n], train[1][:n]))
        tested, right = self._measured(test)
        return [
            self._row(TRAIN, loss + penalty, accuracy),
            self._row(TEST, tested, right),
            self._row(RATE, self.in_use, self.estimating / max(self.seconds, 1e-9)),
        ]

    def _measured(self, data: Data) -> tuple[float, float]:
        with torch.no_grad():
            outputs = torch.cat([self.model(part) for part in data[0].split(500)])  # type: ignore[no-untyped-call]
            right = (outputs.argmax(1) == data[1]).float().mean()
            return float(nn.functional.cross_entropy(outputs, data[1])), float(right)

    def _row(self, what: str, loss: float, metric: float) -> Row:
        return replace(
            self.template, method=_name(self.method, self.rate, what), data_points=self.points, products=self.products,
            seconds=self.seconds, loss=loss if loss == loss else float("inf"), metric=metric,
        )  # fmt: skip

    def save(self, path: Path, rows: Sequence[Row]) -> None:
        """Everything that the run goes on from."""
        path.parent.mkdir(parents=True, exist_ok=True)
        state: dict[str, Any] = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "plain": [g["lr"] for g in self.plain.param_groups] if self.plain else [],
            "generator": self.generator.get_state(), "rows": [list(vars(r).values()) for r in rows],
            "numbers": [self.epoch, self.points, self.products, self.seconds, self.estimating, self.in_use],
        }  # fmt: skip
        with atomic(path) as temporary:
            torch.save(state, temporary)

    def resume(self, path: Path) -> list[Row]:
        """The rows so far of a run that was cut off, and the run as it was then; nothing where there is none."""
        if not path.exists():
            return []
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["plain"]:
            self.plain = torch.optim.SGD(self.model.parameters(), lr=state["plain"][0])
        self.generator.set_state(state["generator"])
        self.epoch, self.points, self.products, self.seconds, self.estimating, self.in_use = state["numbers"]
        return [Row(*values) for values in state["rows"]]
