"""Runs of RateFree: with Hessian-vector products, and with differences of gradients."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

from torch import nn

from infhess.curvature.flat import length
from infhess.optim import RateFree
from infhess_bench.harness import Problem, Training
from infhess_bench.problems.shuffled import CountedStream, Data, closure


class RateFreeRun(Training):
    """Calls `observe` with each batch; the averaged weights are the outcome."""

    optimizer: RateFree

    def __init__(self, problem: Problem, stream: CountedStream, scaling: str, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a given lr is meant as a multiple of the learning rate
            super().__init__(problem, stream, partial(RateFree, scaling=scaling, **options))
        self.shown = copy.deepcopy(self.model)

    def observe(self, batch: Data) -> None:
        """Probe curvature now and then."""
        self.count(self.optimizer.observe(self.loss, batch))

    @property
    def models(self) -> dict[str, nn.Module]:
        """The averaged weights."""
        with self.optimizer.averaged():
            self.shown.load_state_dict(self.model.state_dict())
        return {"": self.shown}

    @property
    def learning_rate(self) -> tuple[float, float]:
        """The learning rate in use, and the standard deviation of its logarithm."""
        found = self.optimizer.rate
        return found.value, found.std / found.value

    @property
    def iterates(self) -> tuple[float, float]:
        """|z − x|/|x|, how far the newest iterate is from the average; and the root mean square of the scaled gradient."""
        owns = [own for own in self.optimizer.state.values() if "z" in own]
        apart, size = (
            length([part]) for part in ([o["z"] - o["averaged"] for o in owns], [o["averaged"] for o in owns])
        )
        numbers = sum(own["z"].numel() for own in owns)
        return apart / size, self.optimizer._rate_state.length / numbers**0.5


class RateFreeByDifferences(RateFreeRun):
    """Uses `step(closure)`, as for losses without second derivatives: each probe is a second run of the closure."""

    def __init__(self, problem: Problem, stream: CountedStream, scaling: str) -> None:
        super().__init__(problem, stream, scaling)
        self.optimizer._rate_state.differences, self.optimizer.points = 1.0, stream.size

    def step(self) -> None:
        """One batch, one step."""
        batch, before = next(self.stream), self.optimizer.report
        self.optimizer.step(closure(self.optimizer, lambda: self.loss(batch)))
        self.count(self.optimizer.report if self.optimizer.report is not before else None)
