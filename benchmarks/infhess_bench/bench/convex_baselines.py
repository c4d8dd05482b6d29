"""Methods for convex problems: one entry per method, with the settings that tuning tries."""

from __future__ import annotations

from functools import partial

import torch

from infhess_bench.bench.published import sketchy
from infhess_bench.harness import AVERAGED, Baseline, Run, fixed, methods, schedule_free
from infhess_bench.problems import ConvexProblem, CountedStream
from infhess_bench.problems.shuffled import closure


class FullBatch(Run):
    """L-BFGS on all of the data, with a line search; each evaluation reads all of it."""

    def __init__(self, problem: ConvexProblem, stream: CountedStream) -> None:
        super().__init__(problem, stream)
        weights = self.model.parameters()
        self.optimizer = torch.optim.LBFGS(weights, max_iter=1, history_size=10, line_search_fn="strong_wolfe")

    def step(self) -> None:
        """One iteration."""
        before = self.stream.points
        self.optimizer.step(closure(self.optimizer, self.whole))  # type: ignore[no-untyped-call]
        if self.stream.points == before:  # it has converged, and reads nothing any more
            self.whole()

    def whole(self) -> torch.Tensor:
        """The loss over all the data."""
        x, y = zip(*self.stream.epoch())
        return self.loss((torch.cat(x), torch.cat(y)))


class LowRankPsgd(Run):
    """PSGD with its low-rank preconditioner, one product per step."""

    def __init__(self, rate: float, problem: ConvexProblem, stream: CountedStream) -> None:
        from psgd_torch import LRA

        super().__init__(problem, stream)
        self.optimizer = LRA(list(self.model.parameters()), rank_of_approximation=10, lr_params=rate, momentum=0.9)

    def step(self) -> None:
        """One batch."""
        batch = next(self.stream)
        self.optimizer.step(lambda: self.loss(batch))
        self.products += 1


ONLINE, UPDATED = "infhess, online", "infhess, update"
PAPER, SKETCHY, SKETCHY32, ADAM = "paper", "SketchySGD, rank 10", "SketchySGD, rank 32", "Adam"
_RATES = tuple(float(f"{10 ** (i / 2):.2g}") for i in range(-9, 5))
_RHO = tuple(float(f"{10.0**i:g}") for i in range(-6, 3))

METHODS: dict[str, Baseline] = {
    ONLINE: Baseline(methods.online, models=(AVERAGED,)),
    UPDATED: Baseline(methods.updated, models=(AVERAGED,)),
    PAPER: Baseline(methods.paper, _RATES),
    SKETCHY: Baseline(partial(sketchy, 10), _RHO, 1e-3),
    SKETCHY32: Baseline(partial(sketchy, 32), _RHO),
    "sgd": Baseline(methods.sgd, _RATES),
    "momentum .9": Baseline(partial(methods.sgd, momentum=0.9), _RATES),
    ADAM: Baseline(methods.adam, _RATES[3:11], 1e-3),
    "Adam, cosine": Baseline(partial(methods.adam, run=methods.Scheduled), _RATES[3:11], models=("",)),
    "schedule-free sgd": Baseline(partial(schedule_free, base="SGD"), _RATES, 1.0, ("",), "schedulefree"),
    "schedule-free AdamW": Baseline(partial(schedule_free, base="AdamW"), _RATES[3:11], 0.0025, ("",), "schedulefree"),
    "Prodigy": Baseline(methods.prodigy, (0.1, 0.3, 3.0, 10.0), 1.0, package="prodigyopt"),
    "PSGD, low rank 10": Baseline(
        partial(partial, LowRankPsgd), (0.003, 0.03, 0.1, 0.3, 1.0), 0.01, ("",), "psgd-torch"
    ),
    "L-BFGS, full batch": Baseline(fixed(FullBatch), models=("",)),
}
