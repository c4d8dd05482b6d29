"""The scalars that `Preconditioned` and its controllers carry from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from infhess.optim.checkpoint import Scalars
from infhess.optim.reports import SKIPPED, steps_were


@dataclass
class ControllerState(Scalars):
    """What is in use (to `momentum`), and what the controllers follow."""

    base_rate: float = math.nan  # the largest learning rate that a group of the base was made with
    active: float = 0.0  # 1 from the first estimate on
    directions: float = 0.0  # how many there are
    factor: float = 1.0  # the coefficient of the identity in P²
    step: float = (
        math.nan
    )  # multiplies P²g; NaN: the base keeps its own learning rate, 0: none is known, no step is made
    limit: float = math.inf  # the longest step |Δw|
    momentum: float = 0.0  # of the convex controller, around plain sgd
    nonconvex: float = 0.0  # 1 once negative curvature has been seen
    read: float = 0.0  # data points seen by `observe`
    steps: float = 0.0  # batches seen by `observe`
    built_at: float = math.nan  # `read` when P was last built; NaN before
    steps_at_build: float = math.nan  # `steps` then
    curvature: float = 0.0  # mean of λmax(P²B) over probes
    squares: float = 0.0  # mean of its square
    probes: float = 0.0  # probes in these means
    first_curvature: float = math.nan  # the first mean after a build
    log_rate: float = math.nan  # filter on the logarithm of the learning rate that curvature allows for
    log_rate_variance: float = 0.0
    rate: float = math.nan  # learning rate in use by the nonconvex controller
    steps_at_probe: float = 0.0  # `steps` at its last probe
    slow: float = 0.0  # 1 once that rate has reached what curvature allows for: it grows slowly from then on
    longest: float = 0.0  # the longest P²g (up to the factor) at probes since P was built; at the last, in nets
    gradient_scale: float = 0.0  # the longest g at these probes
    slope: float = 0.0  # mean of gᵀ(w̄ − w̄'), for two means of iterates
    slope_squares: float = 0.0  # mean of its square
    noise_dominated: float = 0.0  # steps in which the mean of iterates did not descend
    size: float = 0.0  # |w| at the last step, in nets
    shrinking: float = 0.0  # share of |w| that a step takes off per unit of the rate, a moving average; in nets
    scheduled_rate: float = 0.0  # the largest learning rate that a schedule with rates of its own has asked for
    micro_batches: float = 1.0  # of the last step; more than one is gradient accumulation
    skipped: float = 0.0  # steps not made since the last report, because a gradient was not finite
    rank_noted: float = 0.0  # 1 once it was said that the rank is not in use
    rate_limit: float = (
        math.inf
    )  # what noise allowed the rate to be when P was last built, with no noise-dominated step

    def start_over(self) -> None:
        """After an `update`: where the controllers continue from."""
        self.momentum, self.rate, self.log_rate, self.slow, self.rate_limit = 0.0, math.nan, math.nan, 0.0, math.inf
        self.steps_at_build, self.steps_at_probe = self.steps, self.steps
        self.built_at = max(self.read, 1.0)
        self.curvature = self.first_curvature = 1 / (self.step * self.factor) if self.step > 0 else 1.0
        self.squares, self.probes, self.longest = self.curvature**2, 1.0, self.limit * self.curvature / 3
        self.gradient_scale = math.inf

    @property
    def step_std(self) -> float:
        """The standard deviation of the step from the noise of probes; NaN where no filter follows it."""
        return math.nan if math.isnan(self.log_rate) else self.step * self.log_rate_variance**0.5

    def diagnostics(self, rank: int | None = None) -> tuple[str, ...]:
        """What happened to steps since the last report; and once, that a rank that was asked for is not in use."""
        notes = [steps_were(self.skipped, SKIPPED)] if self.skipped else []
        self.skipped = 0.0
        if rank is not None and self.nonconvex and not (self.rank_noted or self.directions):
            self.rank_noted = 1.0
            notes.append(
                f"rank = {rank} is not used: in nets observe follows the learning rate alone; call update for directions"
            )
        return tuple(notes)
