"""A rate for nets that follows curvature: what a look says, a filter over looks, and how fast the rate may grow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from infhess.optim.numbers import Scalars
from infhess.optim.powers import power_of_two
from infhess.optim.step_length import dot

# The rate in units of √(gᵀDg/hᵀDh) at a batch of 32 points, and how it grows with the batch.
SIGMA, REFERENCE, POWER = 5.0, 32.0, 1 / 3
# Kalman's filter on the logarithm of what is seen: variance of a look, and of what changes from one to the next.
NOISE, DRIFT = 0.2, 0.02
# The first rate moves w by this share; growth a step until the rate has reached what curvature allows for, and after that.
START, FAST, SLOW, SETTLED = 1e-3, 1.10, 1.01, 10
# No step is longer than this share of |w|: on a plateau curvature allows for steps that would end the net.
LONGEST = 0.15
# Looks: at each of the first steps, every so many, and while the rate grows, when it has grown by this factor.
FIRST, EVERY, EARLY, GROWN = 4, 80, 600, 2.0
# A direction that is so many times longer than usual is shortened to that; a moving average says what is usual.
LONGER, MEMORY = 4.0, 0.9


@dataclass(frozen=True)
class Rate:
    """The rate in use; `std` is its standard deviation from the noise of looks, NaN before the first.

    >>> Rate(0.01, 0.002)
    Rate(0.01 ± 0.002)
    """

    value: float
    std: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Bounds that hold at this level: the logarithm is taken to be normal."""
        width = NormalDist().inv_cdf((1 + level) / 2) * self.std / self.value
        return self.value * math.exp(-width), self.value * math.exp(width)

    def __float__(self) -> float:
        """The value alone."""
        return self.value

    def __repr__(self) -> str:
        """Both."""
        return f"Rate({self.value:.4g} ± {self.std:.2g})"


@dataclass
class Following(Scalars):
    """The filter and what goes with it, by step.

    Attributes:
        steps: made so far.
        log_rate, variance: of √(gᵀDg/hᵀDh), by the filter; NaN before the first look.
        rate: η, in use; NaN before the first look.
        rate_at_look, steps_at_look: when curvature was last looked at.
        slow: 1 once η has reached what curvature allows for.
        largest, weight: max η so far, and Σ max η², for the average.
        length: usual length of Dg.
        points: data points of a step, a moving average; 0 where that is not known.
        observed: data points seen by `observe` since the last step.
        observed_at: the step for which `observe` was last called.
        gradient: |g|/√n at the last look, in units of which Adam's ε is meant.
        shortened, skipped, bounded, waiting: steps shortened, not made for a bad gradient, kept below a share of |w|, and not
            made for want of a rate, since the last report.

    """

    steps: float = 0.0
    log_rate: float = math.nan
    variance: float = NOISE
    rate: float = math.nan
    rate_at_look: float = math.nan
    steps_at_look: float = 0.0
    slow: float = 0.0
    largest: float = 0.0
    weight: float = 0.0
    length: float = math.nan
    points: float = 0.0
    observed: float = 0.0
    observed_at: float = 0.0
    gradient: float = 0.0
    shortened: float = 0.0
    skipped: float = 0.0
    bounded: float = 0.0
    waiting: float = 0.0

    @property
    def due(self) -> bool:
        """Whether to look at the coming step."""
        t = self.steps + 1
        grown = t <= EARLY and self.rate > GROWN * self.rate_at_look
        blind = math.isnan(self.log_rate) and power_of_two(t)
        return math.isnan(self.rate) or blind or t <= FIRST or t - self.steps_at_look >= EVERY or grown

    def look(self) -> None:
        """Note down that it was looked, whether anything was seen or not."""
        self.rate_at_look, self.steps_at_look = self.rate, self.steps + 1

    def see(self, seen: float) -> None:
        """One look: the logarithm of √(gᵀDg/hᵀDh)."""
        self.log_rate, self.variance = filtered(self.log_rate, self.variance, seen)

    @property
    def allowed(self) -> float:
        """The rate that curvature allows for: σ e^X, σ = 5 (b/32)^⅓; infinite before the first look."""
        if math.isnan(self.log_rate):
            return math.inf
        batch = math.log((self.points or REFERENCE) / REFERENCE)
        return SIGMA * math.exp(POWER * batch + self.log_rate)

    @property
    def uncertain(self) -> Rate:
        """η with the filter's standard deviation."""
        return Rate(self.rate, self.rate * self.variance**0.5)

    def begin(self, size: float, length: float) -> None:
        """The first rate: it moves w by a thousandth."""
        if math.isnan(self.rate) and 0 < length < math.inf:
            self.rate = START * (size or 1.0) / length

    def advance(self, length: float, size: float, scale: float = 1.0) -> float:
        """One step with a direction of this length for weights of this size: the rate follows what is allowed for.

        `scale` is what multiplies the rate. The step to make, without it, is returned.
        """
        self.steps += 1
        seen = self.observed or self.points
        self.points, self.observed = self.points + (1 - MEMORY) * (seen - self.points) if self.points else seen, 0.0
        if FAST * self.rate > self.allowed and self.steps > SETTLED:
            self.slow = 1.0
        growth = 1.0 if math.isnan(self.log_rate) else SLOW if self.slow else FAST
        self.rate = min(growth * self.rate, self.allowed)
        if not length > 0:
            return self.rate
        usual = self.length if self.length > 0 else length
        if size > 0 and self.rate * scale * usual > LONGEST * size:
            self.rate = LONGEST * size / (scale * usual)
            self.bounded += 1
        share = min(1.0, LONGER * usual / length)
        self.shortened += share < 1
        self.length = usual + (1 - MEMORY) * (share * length - usual)
        return self.rate * share

    def skip(self) -> None:
        """A step that is not made; the next batch may be looked at again."""
        if math.isnan(self.rate):
            self.waiting += 1
        else:
            self.skipped += 1
        self.observed, self.observed_at = 0.0, self.steps

    def average(self, scale: float) -> None:
        """Σm² with m the largest rate so far."""
        self.largest = max(self.largest, scale * self.rate)
        self.weight += self.largest**2

    def newest(self, before: float) -> float:
        """The weight c = m²/Σm² of the newest iterate in an average that began when Σ was `before`."""
        since = self.weight - before
        return min(1.0, self.largest**2 / since) if since > 0 else 1.0

    def words(self, before: float) -> tuple[str, ...]:
        """What had to brake since the last report, and why; `before` is what was allowed then."""
        notes = []
        if self.allowed < self.rate:
            notes.append(
                f"curvature along the steps has grown: it allows for {self.allowed:.3g} where it allowed for {before:.3g}, and "
                f"the rate is cut from {self.rate:.3g} to that"
            )
        if self.shortened:
            notes.append(
                f"{self.shortened:.0f} steps were shortened: their gradients were more than {LONGER:g} times as long as usual"
            )
        if self.skipped:
            notes.append(f"{self.skipped:.0f} steps were not made: their gradients held NaN or infinity")
        if self.bounded:
            notes.append(
                f"{self.bounded:.0f} steps were kept to {LONGEST:.0%} of |w|; curvature allows for {self.allowed:.3g}"
            )
        if self.waiting:
            notes.append(f"{self.waiting:.0f} steps were not made: no gradient has been other than zero so far")
        self.shortened = self.skipped = self.bounded = self.waiting = 0.0
        return tuple(notes)


def filtered(mean: float, variance: float, seen: float, drift: float = DRIFT) -> tuple[float, float]:
    """Kalman's filter of a random walk by one look: its mean and variance."""
    if math.isnan(mean):
        return seen, NOISE
    variance += drift
    gain = variance / (variance + NOISE)
    return mean + gain * (seen - mean), variance * (1 - gain)


@dataclass(frozen=True)
class RateReport:
    """A look: the rate in use with its uncertainty, what curvature allows for, the price, and notes in sentences."""

    rate: Rate
    allowed: float
    products: int
    product_points: int
    seconds: float
    notes: tuple[str, ...] = ()
    data_points: int = 0  # nothing is read beside training

    def as_dict(self) -> dict[str, float]:
        """Numbers by name, for TensorBoard or any logger."""
        low, high = self.rate.interval()
        return {
            "rate": self.rate.value, "rate/low": low, "rate/high": high, "rate/allowed": self.allowed,
            "products": float(self.products), "product_points": float(self.product_points),
            "data_points": float(self.data_points), "seconds": self.seconds, "notes": float(len(self.notes)),
        }  # fmt: skip


def log_ratio(g: Tensor, p: Tensor, h: Tensor, D: Tensor) -> float:
    """½ log(gᵀDg/hᵀDh) for p = Dg and h = Hp; NaN where there is no gradient or no curvature along it.

    No sign of pᵀHp is needed, which changes often early on; scaling the loss does not change it, and it scales as w does.
    """
    along, across = dot(g, p), dot(h, D * h)
    if not (0 < along < math.inf and 0 < across < math.inf):
        return math.nan
    return 0.5 * (math.log(along) - math.log(across))
