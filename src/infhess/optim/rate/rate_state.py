"""The learning rate of RateFree, step by step: a filter over curvature probes, and how fast the rate may grow."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

from infhess.optim.checkpoint import Scalars
from infhess.optim.rate.kalman import filtered
from infhess.optim.rate.settings import FILTER, RATE_FREE
from infhess.optim.reports import SKIPPED, Rate, steps_were


@dataclass
class RateState(Scalars):
    """The scalars that the rule carries from step to step."""

    steps: float = 0.0  # number of steps made
    log_rate: float = math.nan  # filtered mean of log √(gᵀDg/hᵀDh); NaN before the first probe
    variance: float = FILTER.noise  # of that mean
    rate: float = math.nan  # η in use; NaN before the first gradient
    rate_at_probe: float = math.nan  # η at the last curvature probe
    steps_at_probe: float = 0.0  # the number of that step
    slow: float = 0.0  # 1 once η has reached what curvature allows
    largest: float = 0.0  # max η so far
    weight: float = 0.0  # Σ s m², for the average: m is max η, s the factor of a schedule
    length: float = math.nan  # usual length of Dg
    points: float = 0.0  # data points per step, a moving average; 0 if unknown
    observed: float = 0.0  # data points seen by `observe` since the last step, if a probe is due
    observed_at: float = 0.0  # the step for which `observe` was last called
    gradient: float = 0.0  # |g|/√n the largest over all probes; the unit of ε
    # Since the last report, steps that were shortened, skipped for a gradient that is not finite, bounded by a share of |w|,
    # and not made because no gradient was seen yet.
    shortened: float = 0.0
    skipped: float = 0.0
    bounded: float = 0.0
    waiting: float = 0.0
    micro_batches: float = 1.0  # calls of `observe` for the last step; more than one means gradient accumulation
    averaged: float = 0.0  # 1 in a checkpoint that was saved while the averaged weights were in the model
    differences: float = 0.0  # 1 once double backward has failed: from then on probes are differences of gradients
    lead: float = (
        0.0  # moving average of ⟨g, z − x⟩; negative while the loss falls from the average to the newest iterate
    )
    noisy: float = 0.0  # number of steps with a positive lead, which noise dominates
    tokens: float = 0.0  # tokens per step, a moving average; the number of points where there are none
    length_read: float = math.nan  # |Dg| at the last curvature probe, or its usual length then if that is larger
    scale: float = 1.0  # factor on η at the last step, by the user or a schedule
    usual: float = math.nan  # usual |g| of a step
    usual_read: float = math.nan  # the same at the last probe
    most_usual: float = 0.0  # the largest value of it since the start
    started_over: float = 0.0  # how often training did so since the last report

    rule = RATE_FREE  # depends on the scaling in use; without an annotation it is not part of a checkpoint

    @property
    def due(self) -> bool:
        """Whether to probe curvature at the coming step."""
        t = self.steps + 1
        grown = t <= self.rule.early and self.rate > self.rule.grown * self.rate_at_probe
        blind = math.isnan(self.log_rate) and t.is_integer() and int(t).bit_count() == 1  # 1, 2, 4, 8, …
        late = t - self.steps_at_probe >= min(self.rule.every, self.rule.share * t)
        unread = self.length > self.rule.longer * self.length_read
        return math.isnan(self.rate) or blind or t <= self.rule.first_probes or late or grown or unread

    def probed(self) -> None:
        """Record that curvature was probed, whether or not anything could be read."""
        self.rate_at_probe, self.steps_at_probe, self.usual_read = self.rate, self.steps + 1, self.usual

    def follow(self, gradient: float) -> bool:
        """Follow the usual |g|; return whether training is to start over, since gradients are unlike those that were read.

        One long gradient hardly counts. But y is close to the average x, so that if gradients at y are many times longer than
        they were at the last probe, and as long as in the beginning, x itself no longer fits the data: the data, or the loss,
        is another one. Neither the rate nor the average has anything to say about that.
        """
        usual = self.usual if self.usual > 0 else gradient
        self.usual = usual + (1 - self.rule.memory) * (min(gradient, self.rule.longer * usual) - usual)
        self.most_usual = max(self.most_usual, self.usual)
        jumped = self.usual > self.rule.unlike * self.usual_read
        watched = self.observed_at == self.steps + 1  # otherwise no probe would follow
        return jumped and watched and self.usual > self.most_usual / self.rule.unlike

    def afresh(self) -> RateState:
        """A state before the first step, which still knows what batches are like, and how long gradients are."""
        kept = (
            "points",
            "tokens",
            "micro_batches",
            "differences",
            "usual",
            "shortened",
            "skipped",
            "bounded",
            "waiting",
        )
        new = replace(RateState(), **{name: getattr(self, name) for name in kept})
        new.rule, new.most_usual, new.started_over = self.rule, self.usual, self.started_over + 1
        new.observed_at = -1.0  # training passes were seen
        return new

    def see(self, log_ratio: float, gradient: float = math.inf) -> None:
        """Filter one reading: the logarithm of √(gᵀDg/hᵀDh). Where growth has no bound, it sets the rate.

        `gradient` is the root mean square of g. Once it is tiny beside the largest so far, it is rounding or soon will be: that
        is no evidence for a larger rate.
        """
        if gradient < self.rule.evidence * self.gradient:
            log_ratio = min(log_ratio, self.log_rate)
        self.log_rate, self.variance = filtered(self.log_rate, self.variance, log_ratio)
        if math.isinf(self.rule.growth) and not self.slow:
            self.rate = self.allowed

    @property
    def allowed(self) -> float:
        """The rate that curvature allows: σ (b/32)^⅓ e^X / √(1 + n/n₀), with X = `log_rate` and n the noise-dominated steps.

        Infinite before the first reading. b is the number of points; where that is below 32, of tokens up to 32.
        """
        if math.isnan(self.log_rate):
            return math.inf
        usual = self.rule.reference_batch
        points = min(max(self.points or usual, min(self.tokens, usual)), self.rule.largest_batch)
        batch = math.log(points / usual)
        return self.rule.sigma / self._noise_factor * math.exp(self.rule.batch_power * batch + self.log_rate)

    @property
    def _noise_factor(self) -> float:
        return math.sqrt(1 + self.noisy / self.rule.noisy_steps)

    @property
    def weighs_noise(self) -> bool:
        """Whether ⟨g, z − x⟩ is needed at the coming step."""
        steps, rule = self.steps, self.rule
        return math.isfinite(rule.noisy_steps) and steps >= rule.noise_from and steps % rule.noise_every == 0

    def weigh_noise(self, lead: float) -> None:
        """Average one more ⟨g, z − x⟩: if the average is positive, the iterates circle around their mean."""
        memory = self.rule.noise_memory**self.rule.noise_every
        self.lead = memory * self.lead + (1 - memory) * lead
        self.noisy += self.rule.noise_every * (self.lead > 0)

    @property
    def shrinks(self) -> bool:
        """Whether weights are shrunk at this step."""
        return self.rule.shrinkage > 0 and self.steps % self.rule.noise_every == 0

    @property
    def uncertain(self) -> Rate:
        """η with the filter's standard deviation; NaN until curvature was seen."""
        if math.isnan(self.log_rate):
            return Rate(math.nan, math.nan)
        return Rate(self.rate, self.rate * self.variance**0.5)

    def begin(self, size: float, length: float) -> None:
        """The rate until curvature was seen: it moves w by a thousandth of |w|."""
        if math.isnan(self.rate) and 0 < length < math.inf:
            self.rate = self.rule.first_move * (size or 1.0) / length

    def advance(self, length: float, size: float, scale: float = 1.0) -> float:
        """Make one step, for a direction of this length and weights of this size: the rate grows up to what curvature allows.

        `scale` is a factor on the rate, by the user or a scheduler. Returns the rate of this step without that factor.
        """
        self.steps += 1
        self.observed = 0.0
        allowed = self.allowed
        if self.rule.growth * self.rate > allowed and self.steps > self.rule.settled:
            self.slow = 1.0
        self.rate = min(self._growth * self.rate, allowed)
        if not length > 0:
            return self.rate
        usual = self.length if self.length > 0 else length
        if size > 0 and self.rate * scale * usual > self.rule.longest * size:
            self.rate = self.rule.longest * size / (scale * usual)
            self.bounded += 1
        known = usual if math.isnan(self.length_read) else min(usual, self.length_read)
        share = min(1.0, self.rule.longer * known / length)
        self.shortened += share < 1
        self.length = usual + (1 - self.rule.memory) * (share * length - usual)
        return self.rate * share

    @property
    def _growth(self) -> float:
        if math.isnan(self.log_rate):
            return 1.0
        if not self.slow:
            return self.rule.growth
        return 1 + max(self.rule.late_growth, self.rule.waning_growth / self.steps)

    def measure(self, gradient: float) -> None:
        """Record the root mean square of the gradient at a probe, the unit of ε."""
        if 0 < gradient < math.inf:
            self.gradient = max(gradient, self.gradient)

    def check_observed(self) -> None:
        """Refuse a step before any training pass was seen; warn if none was seen for long."""
        if not self.observed_at:
            raise RuntimeError(
                "RateFree: no training pass was seen, so there is no rate; call opt.step(closure), or put forward and backward "
                "into `with opt.watch():`, or call opt.observe(loss, batch) between backward and step, with each batch"
            )
        missed, every = self.steps - self.observed_at, 2 * self.rule.every
        if missed >= every and missed % every == 0:
            warnings.warn(
                f"RateFree: no training pass was seen for {missed:.0f} steps, and the rate follows curvature no more; call "
                "opt.step(closure), opt.watch() or opt.observe(loss, batch) with each batch",
                stacklevel=3,
            )

    def count_points(self, points: float, tokens: float) -> None:
        """Average the data points and tokens per step, only at probes, so that all processes have the same values."""
        share = 1 - self.rule.batch_memory
        self.points = self.points + share * (points - self.points) if self.points else points
        self.tokens = self.tokens + share * (tokens - self.tokens) if self.tokens else tokens

    def skip(self, finite: bool) -> None:
        """Skip a step for lack of a rate or of a finite gradient; the next batch may be probed again."""
        self.waiting += finite
        self.skipped += not finite
        self.observed, self.observed_at = 0.0, self.steps or -1.0  # 0 means that nothing was seen

    def average(self, scale: float) -> None:
        """Add the weight s m² of the newest iterate, with m the largest rate so far and s the factor of a schedule.

        A rate that curvature cuts does not reduce m: later iterates are better. A schedule that lowers the rate counts, since
        iterates that hardly move any more would otherwise take over the average, whatever their own loss.
        """
        self.largest, self.scale = max(self.largest, self.rate), scale
        self.weight += scale * self.largest**2

    def newest(self, before: float) -> float:
        """The share c = s m²/Σ s m² of the newest iterate in an average that began when the sum was `before`."""
        since = self.weight - before
        return min(1.0, self.scale * self.largest**2 / since) if since > 0 else 1.0

    def distance(self, beta: float, scale: float = 1.0) -> float:
        """How far y moves with the coming step, as a share of |Dg|: η (1 − β₁ + β₁ c), with `scale` in η and c."""
        weight = scale * max(self.largest, self.rate) ** 2
        newest = weight / (self.weight + weight) if self.weight > 0 else 1.0
        return scale * self.rate * (1 - beta + beta * newest)

    def diagnostics(self, before: float) -> tuple[str, ...]:
        """Notes on what reduced the rate since the last report, and why; `before` is what curvature allowed then."""
        notes = []
        if self.allowed < self.rate:
            notes.append(
                f"curvature along the steps has grown: it allows for {self.allowed:.3g} where it allowed for {before:.3g}, and "
                f"the learning rate is cut from {self.rate:.3g} to that"
            )
        for count, what in (
            (self.shortened, f"shortened: the gradient was more than {self.rule.longer:g} times as long as usual"),
            (self.skipped, SKIPPED),
            (self.bounded, f"kept to {self.rule.longest:.0%} of |w|; curvature allows for {self.allowed:.3g}"),
            (self.waiting, "not made: all gradients were zero, or no learning rate was known yet"),
        ):
            notes += [steps_were(count, what)] if count else []
        if self.started_over:
            notes.append(
                f"training started over from the averaged weights: gradients were more than {self.rule.unlike:g} times as long "
                "as at the last probe for several steps, so the data or the loss is no longer the one that was learnt"
            )
        if self._noise_factor > 1:
            notes.append(
                f"noise dominated {self.noisy:.0f} steps so far: the rate is divided by {self._noise_factor:.2g}"
            )
        self.shortened = self.skipped = self.bounded = self.waiting = self.started_over = 0.0
        return tuple(notes)
