"""What users would pick instead, on convex problems: one entry a method, with the settings that are tried."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from infhess.bench.optimizers import (
    AVERAGED,
    Peer,
    adam,
    adam_cosine,
    alone,
    momentum,
    prodigy,
    schedule_free,
)
from infhess.bench.sketchy import sketchy
from infhess.experiments.training import Training, printed, self_driving, sgd, updated
from infhess.problems.convex import ConvexProblem
from infhess.problems.shuffled import Reading


class FullBatch:
    """L-BFGS on all of the data, with a line search; each evaluation reads everything."""

    def __init__(self, problem: ConvexProblem, reading: Reading) -> None:
        self.model, self.reading, self.products, self.data = problem.model(), reading, 0, problem.data
        self.models: dict[str, nn.Module] = {"": self.model}
        self.loss = problem.loss(self.model)
        self.optimizer = torch.optim.LBFGS(
            self.model.parameters(), max_iter=1, history_size=10, line_search_fn="strong_wolfe"
        )

    def step(self) -> None:
        """One iteration."""
        before = self.reading.points
        self.optimizer.step(self.closure)  # type: ignore[no-untyped-call]
        if self.reading.points == before:  # it has converged, and reads nothing any more
            self.closure()

    def closure(self) -> torch.Tensor:
        """Value and gradient over everything."""
        parts = list(self.reading.epoch())
        self.optimizer.zero_grad()
        data = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
        value = self.loss(data)
        value.backward()  # type: ignore[no-untyped-call]
        return value


class LowRankPsgd:
    """PSGD with its low-rank preconditioner, a product a step."""

    def __init__(self, problem: ConvexProblem, reading: Reading, rate: float) -> None:
        from psgd_torch import LRA

        self.model, self.reading, self.products = problem.model(), reading, 0
        self.models: dict[str, nn.Module] = {"": self.model}
        self.loss = problem.loss(self.model)
        self.optimizer = LRA(list(self.model.parameters()), rank_of_approximation=10, lr_params=rate, momentum=0.9)

    def step(self) -> None:
        """One batch."""
        batch = next(self.reading)
        self.optimizer.step(lambda: self.loss(batch))
        self.products += 1


class VarianceReduced(Training):
    """Self-driving; from the second epoch on with a snapshot an epoch, taken at the average, from which it goes on."""

    def __init__(self, problem: ConvexProblem, reading: Reading) -> None:
        from infhess.optim import Preconditioned, Snapshot

        super().__init__(problem, reading, lambda p: Preconditioned(torch.optim.SGD(p, lr=1.0)))
        self.snapshot, self.due = Snapshot(self.loss, self.model.parameters()), reading.population

    def step(self) -> None:
        """One batch; before it, a snapshot where it is due."""
        if self.reading.points >= self.due:
            self.model.load_state_dict(self.models[AVERAGED].state_dict())
            self.snapshot.take(self.reading.epoch())
            self.due = self.reading.points + self.reading.population
        super().step()

    def observe(self, batch: Any) -> None:
        """The corrected gradient, then as ever."""
        self.snapshot.correct(batch)
        self.count(self.optimizer.observe(self.loss, batch))  # type: ignore[attr-defined]


OURS, UPDATED, REDUCED = "ours, self-driving", "ours, update", "ours, self-driving with snapshots"
PAPER, SKETCHY, SKETCHY32, ADAM = "paper, as printed", "SketchySGD, rank 10", "SketchySGD, rank 32", "Adam"
_RATES = tuple(float(f"{10 ** (i / 2):.2g}") for i in range(-9, 5))
_RHO = tuple(float(f"{10.0**i:g}") for i in range(-6, 3))

METHODS: dict[str, Peer] = {
    OURS: Peer(alone(self_driving()), models=(AVERAGED,)),
    UPDATED: Peer(alone(updated()), models=(AVERAGED,)),
    REDUCED: Peer(alone(VarianceReduced), models=(AVERAGED,)),
    PAPER: Peer(printed, _RATES),
    SKETCHY: Peer(partial(sketchy, 10), _RHO, 1e-3),
    SKETCHY32: Peer(partial(sketchy, 32), _RHO),
    "sgd": Peer(sgd, _RATES),
    "momentum .9": Peer(momentum, _RATES),
    ADAM: Peer(adam, _RATES[3:11], 1e-3),
    "Adam, cosine": Peer(adam_cosine, _RATES[3:11], models=("",)),
    "schedule-free sgd": Peer(partial(schedule_free, adam=False), _RATES, 1.0, ("",), "schedulefree"),
    "schedule-free AdamW": Peer(partial(schedule_free, adam=True), _RATES[3:11], 0.0025, ("",), "schedulefree"),
    "Prodigy": Peer(prodigy, (0.1, 0.3, 3.0, 10.0), 1.0, package="prodigyopt"),
    "PSGD, low rank 10": Peer(
        lambda rate: partial(LowRankPsgd, rate=rate), (0.003, 0.03, 0.1, 0.3, 1.0), 0.01, ("",), "psgd-torch"
    ),
    "L-BFGS, full batch": Peer(alone(FullBatch), models=("",)),
}


def missing() -> dict[str, str]:
    """Methods whose package is not installed, and its name."""
    return {name: peer.package for name, peer in METHODS.items() if peer.missing}
