"""The scalars that `Preconditioned` and its controllers carry from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from infhess.optim.checkpoint import Scalars
from infhess.optim.reports import SKIPPED, steps_were


@dataclass
class ControllerState(Scalars):
    """What is in use (to `momentum`), and what the controllers follow.

    Attributes:
        base_rate: the largest learning rate that a group of the base was made with.
        active: 1 from the first estimate on.
        directions: how many there are.
        factor: the coefficient of the identity in P².
        step: multiplies P²g; NaN where the base keeps its own learning rate, 0 while none is known: no step is made then.
        limit: the longest step |Δw|.
        momentum: of the convex controller, around plain sgd.
        nonconvex: 1 once negative curvature has been seen.
        read, steps: data points and batches seen by `observe`.
        built_at, steps_at_build: the same when P was last built, NaN before.
        curvature, squares, probes: means of λmax(P²B) and of its square, and number of probes that went into them.
        first_curvature: the first of them after a build.
        log_rate, log_rate_variance: filter on the logarithm of the learning rate that curvature allows for.
        rate, steps_at_probe: learning rate in use by the nonconvex controller, and `steps` at its last probe.
        slow: 1 once that rate has reached what curvature allows for, so that it grows slowly from then on.
        longest, gradient_scale: the longest P²g (up to the factor) and g at probes since P was built; at the last, in nets.
        slope, slope_squares: means of gᵀ(w̄ − w̄') and of its square, for two means of iterates.
        noise_dominated: steps in which these did not descend.
        size: |w| at the last step, in nets.
        shrinking: the share of |w| that a step takes off for each unit of the rate, a moving average; in nets.
        scheduled_rate: the largest learning rate that a schedule with rates of its own has asked for.
        micro_batches: calls of `observe` for the last step; more than one is gradient accumulation.
        skipped: steps that were not made for a gradient that was not finite, since the last report.
        rank_noted: 1 once it was said that the rank is not in use.
        rate_limit: what noise allowed the rate to be when P was last built, were no step noise-dominated.

    """

    base_rate: float = math.nan
    active: float = 0.0
    directions: float = 0.0
    factor: float = 1.0
    step: float = math.nan
    limit: float = math.inf
    momentum: float = 0.0
    nonconvex: float = 0.0
    read: float = 0.0
    steps: float = 0.0
    built_at: float = math.nan
    steps_at_build: float = math.nan
    curvature: float = 0.0
    squares: float = 0.0
    probes: float = 0.0
    first_curvature: float = math.nan
    log_rate: float = math.nan
    log_rate_variance: float = 0.0
    rate: float = math.nan
    steps_at_probe: float = 0.0
    slow: float = 0.0
    longest: float = 0.0
    gradient_scale: float = 0.0
    slope: float = 0.0
    slope_squares: float = 0.0
    noise_dominated: float = 0.0
    size: float = 0.0
    shrinking: float = 0.0
    scheduled_rate: float = 0.0
    micro_batches: float = 1.0
    skipped: float = 0.0
    rank_noted: float = 0.0
    rate_limit: float = math.inf

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
