"""Optimizers that users would pick instead, as methods of the harness: one entry each, with the settings that are tried."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from infhess.experiments.training import Method, Problem, Training
from infhess.problems.shuffled import Reading

AVERAGED = ", averaged"


@dataclass(frozen=True)
class Peer:
    """A method with a setting: the values that tuning tries, none where there is nothing to set, and its default if it has one.

    `package` is what has to be installed; `models` the outcomes that tuning chooses among.
    """

    make: Callable[[float], Method]
    grid: tuple[float, ...] = ()
    default: float | None = None
    models: tuple[str, ...] = ("", AVERAGED)
    package: str = ""

    @property
    def missing(self) -> bool:
        """Whether its package is not here."""
        return bool(self.package) and importlib.util.find_spec(self.package.split("=")[0].replace("-", "_")) is None


class Cosine(Training):
    """With a rate that falls to zero over the budget, which it has to know."""

    def __init__(self, problem: Problem, reading: Reading, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        super().__init__(problem, reading, make)
        steps = max(1, reading.budget // reading.size)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def step(self) -> None:
        """A step of the optimizer, and one of the schedule."""
        super().step()
        self.schedule.step()


class ScheduleFree(Training):
    """Its own average is what it hands over."""

    def __init__(self, problem: Problem, reading: Reading, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        super().__init__(problem, reading, make)
        self.shown = copy.deepcopy(self.model)
        self.optimizer.train()  # type: ignore[attr-defined]

    @property
    def models(self) -> dict[str, nn.Module]:
        """The weights to evaluate at."""
        self.optimizer.eval()  # type: ignore[attr-defined]
        self.shown.load_state_dict(self.model.state_dict())
        self.optimizer.train()  # type: ignore[attr-defined]
        return {"": self.shown}


def momentum(rate: float) -> Method:
    """Of .9."""
    return lambda p, r: Training(p, r, lambda w: torch.optim.SGD(w, lr=rate, momentum=0.9))


def adam(rate: float) -> Method:
    """With its default momentum."""
    return lambda p, r: Training(p, r, lambda w: torch.optim.Adam(w, lr=rate))


def adam_cosine(rate: float) -> Method:
    """With a rate that falls."""
    return lambda p, r: Cosine(p, r, lambda w: torch.optim.Adam(w, lr=rate))


def prodigy(scale: float) -> Method:
    """By d_coef."""

    def make(w: Any) -> torch.optim.Optimizer:
        from prodigyopt import Prodigy

        return Prodigy(w, lr=1.0, d_coef=scale)  # type: ignore[no-any-return]

    return lambda p, r: Training(p, r, make)


def schedule_free(rate: float, adam: bool) -> Method:
    """Of sgd, or of AdamW."""

    def make(w: Any) -> torch.optim.Optimizer:
        from schedulefree import AdamWScheduleFree, SGDScheduleFree

        return AdamWScheduleFree(w, lr=rate) if adam else SGDScheduleFree(w, lr=rate)  # type: ignore[no-any-return]

    return lambda p, r: ScheduleFree(p, r, make)


def alone(method: Method) -> Callable[[float], Method]:
    """A method that has nothing to set."""
    return lambda _: method
