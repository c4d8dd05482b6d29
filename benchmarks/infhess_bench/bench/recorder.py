"""The loss over all the data against the cost, for the accuracy bench."""

from __future__ import annotations

import math
import time

from torch import Tensor

from infhess_bench.harness import Row
from infhess_bench.problems import ConvexProblem

MINIMIZE = "infhess.minimize"
# A run ends at this gap, after this many passes of gradients, or after this many seconds plus one for each NUMBERS of
# points × weights: the time of a few hundred passes.
ENOUGH, PASSES, SECONDS, NUMBERS = 3e-9, 500, 8.0, 3e6


class EnoughError(Exception):
    """A run is accurate enough, or has used up its passes or seconds."""


class Recorder:
    """The loss over all the data, against the cost; its own time does not count.

    Seconds are CPU seconds of one thread: other work on the machine does not count either.
    """

    def __init__(self, problem: ConvexProblem, template: Row, best: float, start: float) -> None:
        self.problem, self.template, self.n = problem, template, len(problem.data[0])
        self.best, self.start, self._model = best, start, problem.model()
        self.rows: list[Row] = []
        # minimize stops by its own rule; its cost is in the rows.
        seconds = SECONDS + self.n * self._model.weight.numel() / NUMBERS
        self.limit = math.inf if template.method == MINIMIZE else seconds
        self.points, self.product_points, self.products = 0, 0, 0
        self._spent, self._since = 0.0, time.process_time()

    def __call__(self, W: Tensor, loss: float | None = None) -> None:
        """Add a row at these weights; the loss over all the data may be given.

        The metric is work in passes: points in gradients and in products.
        """
        self._spent += time.process_time() - self._since
        if loss is None:
            self._model.weight.data.copy_(W.detach().reshape(self._model.weight.shape))
            loss = self.problem.value(self._model)
        work = (self.points + self.product_points) / self.n
        cost = self.points, self.products, float(f"{self._spent:.4g}")
        self.rows.append(Row(*self.template.key, *cost, loss, work))
        gap = (loss - self.best) / (self.start - self.best)
        if gap <= ENOUGH or self.points > PASSES * self.n or self._spent > self.limit:
            raise EnoughError
        self._since = time.process_time()
