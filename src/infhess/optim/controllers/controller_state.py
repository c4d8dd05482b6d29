"""The scalars that `Preconditioned` and its controllers carry from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from infhess.optim.checkpoint import Scalars
from infhess.optim.reports import SKIPPED, steps_were

# Convex: the longest step, relative to the longest on the batches probed since the last build. Losses other than quadratics
# may have more curvature where a step leads.
LONGER = 3.0


@dataclass
class ControllerState(Scalars):
    """First the values in use (down to `momentum`), then what the controllers keep track of."""

    base_rate: float = math.nan  # the largest learning rate that a group of the base was made with
    active: float = 0.0  # 1 from the first estimate on
    directions: float = 0.0  # how many directions P² has
    factor: float = 1.0  # the coefficient of the identity in P²
    step: float = math.nan  # multiplies P²g; NaN: the base keeps its own learning rate; 0: none is known, no step
    limit: float = math.inf  # the longest step |Δw|
    momentum: float = 0.0  # set by the convex controller, around SGD without momentum
    nonconvex: float = 0.0  # 1 once negative curvature has been seen
    read: float = 0.0  # data points seen by `observe`
    steps: float = 0.0  # batches seen by `observe`
    built_at: float = math.nan  # `read` when P was last built; NaN before
    steps_at_build: float = math.nan  # `steps` when P was last built
    curvature: float = 0.0  # running mean of λmax(P²B) over probes
    squares: float = 0.0  # running mean of λmax(P²B)²
    probes: float = 0.0  # probes since P was last built
    first_curvature: float = math.nan  # the mean over the first probes after a build
    log_rate: float = math.nan  # filtered logarithm of the learning rate that curvature allows
    log_rate_variance: float = 0.0
    rate: float = math.nan  # learning rate used by the nonconvex controller
    steps_at_probe: float = 0.0  # `steps` at the last probe of the nonconvex controller
    slow: float = 0.0  # 1 once `rate` has reached what curvature allows: it grows slowly from then on
    longest: float = 0.0  # longest P²g (without the factor) over probes since P was built; in nets, at the last probe
    gradient_scale: float = 0.0  # longest g over the same probes
    slope: float = 0.0  # moving average of gᵀ(w̄ − w̄'), with two means of iterates
    slope_squares: float = 0.0  # moving average of its square
    noise_dominated: float = 0.0  # count of steps at which the mean of iterates did not descend
    size: float = 0.0  # |w| at the last step, in nets
    shrinking: float = 0.0  # share of |w| that a step removes per unit of learning rate, moving average; in nets
    scheduled_rate: float = 0.0  # largest learning rate that a schedule has asked for so far
    micro_batches: float = 1.0  # number in the last step; more than one means gradient accumulation
    skipped: float = 0.0  # steps skipped since the last report because a gradient was not finite
    rank_noted: float = 0.0  # 1 once the user was told that the rank is not used
    rate_limit: float = math.inf  # from the noise of gradients at the last build of P, without noise-dominated steps
    largest_gradient: float = 0.0  # |g| in nets, the largest over all probes

    def start_over(self) -> None:
        """Reset what the controllers track after an `update`."""
        self.momentum, self.rate, self.log_rate, self.slow, self.rate_limit = 0.0, math.nan, math.nan, 0.0, math.inf
        self.steps_at_build, self.steps_at_probe = self.steps, self.steps
        self.built_at = max(self.read, 1.0)
        self.curvature = self.first_curvature = 1 / (self.step * self.factor) if self.step > 0 else 1.0
        self.squares, self.probes, self.longest = self.curvature**2, 1.0, self.limit * self.curvature / LONGER
        self.gradient_scale = math.inf

    @property
    def step_std(self) -> float:
        """The standard deviation of the step due to noise in the probes; NaN if there is no filter."""
        return math.nan if math.isnan(self.log_rate) else self.step * self.log_rate_variance**0.5

    def diagnostics(self, rank: int | None = None) -> tuple[str, ...]:
        """Notes on steps since the last report; and once, a note that the requested rank is not used."""
        notes = [steps_were(self.skipped, SKIPPED)] if self.skipped else []
        self.skipped = 0.0
        if rank is not None and self.nonconvex and not (self.rank_noted or self.directions):
            self.rank_noted = 1.0
            notes.append(
                f"rank = {rank} is not used: in nets observe follows the learning rate alone; call update for directions"
            )
        return tuple(notes)
