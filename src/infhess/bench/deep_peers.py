"""What users would pick instead, for nets: one entry a method, with the rates that tuning tries and its default."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from infhess.bench.cdat import Cdat
from infhess.bench.optimizers import Peer, ScheduleFree, adam, alone, momentum, prodigy
from infhess.experiments.training import MakeOptimizer, Method, Problem, SelfDriving, Training, sgd
from infhess.optim import Preconditioned, RateFree
from infhess.optim.averaging.batch_norm import Statistics
from infhess.problems.shuffled import Reading

# Batches on which BatchNorm's statistics are gathered for averages that are not ours: the same as for ours.
RECENT = 16

# The preconditioner of low rank: directions a layer, and steps until the first estimate and between two.
RANK, FIRST, BETWEEN = 8, 100, 400


class RateFreeRun(Training):
    """`observe` with each batch; the averaged weights are what it hands over."""

    optimizer: RateFree

    def __init__(self, problem: Problem, reading: Reading) -> None:
        super().__init__(problem, reading, RateFree)
        self.shown = copy.deepcopy(self.model)

    def observe(self, batch: tuple[Tensor, Tensor]) -> None:
        """Looks now and then."""
        self.count(self.optimizer.observe(self.loss, batch))

    @property
    def models(self) -> dict[str, nn.Module]:
        """The averaged weights."""
        with self.optimizer.averaged():
            self.shown.load_state_dict(self.model.state_dict())
        return {"": self.shown}

    @property
    def rate(self) -> tuple[float, float]:
        """The rate in use, and the standard deviation of its logarithm."""
        found = self.optimizer.rate
        return found.value, found.std / found.value


class Refreshed(ScheduleFree):
    """Schedule-free as its authors advise: BatchNorm's statistics are gathered anew for the averaged weights."""

    def __init__(self, problem: Problem, reading: Reading, make: MakeOptimizer) -> None:
        super().__init__(problem, reading, make)
        self.shown_loss, self.recent = problem.loss(self.shown), deque[tuple[Tensor, Tensor]](maxlen=RECENT)

    def observe(self, batch: tuple[Tensor, Tensor]) -> None:
        """Keep the batch."""
        self.recent.append(batch)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The weights to evaluate at."""
        found = super().models
        norms = [m for m in self.shown.modules() if isinstance(m, _BatchNorm)]
        Statistics(norms).gather([(self.shown_loss, batch) for batch in self.recent], list(self.shown.parameters()))
        return found


class Averaged(Training):
    """DoG with the polynomial averaging that its authors advise."""

    def __init__(self, problem: Problem, reading: Reading) -> None:
        from dog import DoG, PolynomialDecayAverager

        super().__init__(problem, reading, DoG)
        self.averager = PolynomialDecayAverager(self.model)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The average."""
        return {"": self.averager.averaged_model}

    def step(self) -> None:
        """One batch."""
        super().step()
        self.averager.step()


class Printed(Training):
    """The paper's deep-learning variant: an estimate at the start of every epoch but the first, which has the given rate."""

    optimizer: Preconditioned

    def __init__(self, problem: Problem, reading: Reading, rate: float) -> None:
        super().__init__(
            problem,
            reading,
            lambda p: Preconditioned(torch.optim.SGD(p, lr=rate), rank=2, method="paper", blocks="layer"),
        )
        self.due = reading.population

    def step(self) -> None:
        """One batch, after an estimate where one is due."""
        if self.reading.points >= self.due:
            self.due = self.reading.points + self.reading.population
            with suppress(ValueError):  # where the net is dead, or its curvature not finite, what there was stays
                self.count(self.optimizer.update(self.loss, self.reading))
        super().step()


class Ranked(SelfDriving):
    """A preconditioner of rank 8 a layer in use, estimated now and then; after that `observe` finds the rate anew."""

    def __init__(self, problem: Problem, reading: Reading) -> None:
        make: MakeOptimizer = lambda p: Preconditioned(torch.optim.SGD(p, lr=1e-2), rank=RANK, blocks="layer")  # noqa: E731
        super().__init__(problem, reading, make)
        self.made = 0

    def step(self) -> None:
        """One batch, after an estimate where one is due."""
        if self.made % BETWEEN == FIRST:
            with suppress(ValueError):  # where curvature is not finite, what there was stays
                self.count(self.optimizer.update(self.loss, self.reading))
        self.made += 1
        super().step()


def _default(make: MakeOptimizer) -> Callable[[float], Method]:
    return alone(lambda problem, reading: Training(problem, reading, make))


def _dadapt(params: Any) -> torch.optim.Optimizer:
    from dadaptation import DAdaptAdam

    found: torch.optim.Optimizer = DAdaptAdam(params)
    return found


def _soap(params: Any) -> torch.optim.Optimizer:
    from pytorch_optimizer import SOAP

    found: torch.optim.Optimizer = SOAP(params)
    return found


def _schedule_free(name: str) -> Callable[[float], Method]:
    def make(params: Any) -> torch.optim.Optimizer:
        import schedulefree

        found: torch.optim.Optimizer = getattr(schedulefree, name)(params)
        return found

    return alone(lambda problem, reading: Refreshed(problem, reading, make))


BASES: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "Adam": lambda p, rate: torch.optim.Adam(p, lr=rate),
    "momentum .9": lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9),
    "sgd": lambda p, rate: torch.optim.SGD(p, lr=rate),
}


def observed(base: str, rate: float) -> Method:
    """`Preconditioned` around a base that was made with some rate, self-driving."""
    return lambda problem, reading: SelfDriving(problem, reading, lambda p: Preconditioned(BASES[base](p, rate)))


OURS, ADAM, SGD, SCHEDULE_FREE = "ours, RateFree", "Adam", "sgd", "schedule-free AdamW"
AROUND = {base: f"ours, around {base}" for base in BASES}
RANKED = f"{AROUND['sgd']}, rank {RANK} a layer"
ALL = ("",)

METHODS: dict[str, Peer] = {
    OURS: Peer(alone(RateFreeRun), models=ALL),
    **{AROUND[base]: Peer(partial(observed, base), (), 1e-2, ALL) for base in BASES},
    RANKED: Peer(alone(Ranked), models=ALL),
    SGD: Peer(sgd, (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), 1e-3, ALL),
    "momentum .9": Peer(momentum, (0.0003, 0.003, 0.01, 0.03, 0.1), 1e-3, ALL),
    ADAM: Peer(adam, (3e-4, 3e-3, 1e-2, 3e-2), 1e-3, ALL),
    "Prodigy": Peer(prodigy, (), 1.0, ALL, "prodigyopt"),
    "D-Adaptation": Peer(_default(_dadapt), (), 1.0, ALL, "dadaptation"),
    "DoG": Peer(alone(Averaged), (), 1.0, ALL, "dog"),
    "schedule-free sgd": Peer(_schedule_free("SGDScheduleFree"), (), 1.0, ALL, "schedulefree"),
    SCHEDULE_FREE: Peer(_schedule_free("AdamWScheduleFree"), (), 0.0025, ALL, "schedulefree"),
    "SOAP": Peer(_default(_soap), (), 3e-3, ALL, "pytorch_optimizer"),
    "paper, as printed": Peer(lambda rate: partial(Printed, rate=rate), (), 1e-2, ALL),
    "CDAT": Peer(alone(Cdat), models=ALL),
}


def missing() -> dict[str, str]:
    """Methods whose package is not installed, and its name."""
    return {name: peer.package for name, peer in METHODS.items() if peer.missing}
