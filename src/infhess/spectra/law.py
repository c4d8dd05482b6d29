"""What was seen of a spectrum as bounds on its distribution function: from quadrature, from starts and from data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.spectra.halves import Halves
from infhess.spectra.quadrature import Quadrature
from infhess.spectra.shares import bracket_deviate, kolmogorov, normal_deviate, share_bound

SUMS = 1e-12  # the rounding of sums of weights: all of them are 1
SHIFTS = 24  # values of δ that are tried, over five orders of magnitude


@dataclass(frozen=True)
class Sampled:
    """The matrix H_M of a sample, δ and the share of its error E = H_M − H beyond ± δ.

    n(H ≤ x) ≤ n(H_M ≤ x + δ) + n(E > δ) for every δ ≥ 0, and n(H > x) ≤ n(H_M > x − δ) + n(E < −δ) (Weyl).
    """

    seen: Quadrature
    delta: Tensor
    lost: Tensor

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """On the share of H, with the best δ for each x."""
        low, high = (
            self.seen.quick_bounds(x[:, None] - self.delta)[0],
            self.seen.quick_bounds(x[:, None] + self.delta)[1],
        )
        return (low - self.lost).amax(1).clamp(min=0), (high + self.lost).amin(1).clamp(max=1)


def sampled(seen: Quadrature, error: Quadrature) -> Sampled:
    """From quadratures of H_M and of a matrix that is distributed as E."""
    largest = 1.1 * error.nodes()[0].abs().max()
    delta = largest * torch.logspace(-5, 0, SHIFTS).to(seen.T)
    lost = 1 - error.quick_bounds(delta)[0] + error.quick_bounds(-delta)[1]
    lost[-1] = 0.0  # beyond the largest, with a tenth to spare
    return Sampled(seen, delta, lost.clamp(min=0))


class Bracket(NamedTuple):
    """Least and greatest share up to noise, and the standard error of what the data adds to the noise of the starts."""

    low: Tensor
    high: Tensor
    se: Tensor

    @classmethod
    def sure(cls, low: Tensor, high: Tensor) -> Bracket:
        """Without noise of the data."""
        return cls(low, high, torch.zeros_like(low))


@dataclass(frozen=True)
class Law:
    """Bounds on the share of eigenvalues at or below x.

    `starts` of N-vectors gave `seen`; none means that all eigenvalues are in it, with equal weights. `data` is what the rest of
    the data may change, None where all of it was read: estimated from halves of the sample, or bounded by Weyl's inequality.
    """

    seen: Quadrature
    size: int
    starts: int
    data: Sampled | Halves | None

    @property
    def mass(self) -> float:
        """ν = VN/2 of the law of shares; beyond any number where there is no noise of starts."""
        return self.starts * self.size / 2 if self.starts else 1e18

    def bounds(self, x: Tensor) -> Bracket:
        """Least and greatest share, up to the noise of the starts and of the data."""
        if isinstance(self.data, Sampled):
            return Bracket.sure(*self.data.bounds(x))
        low, high = self.seen.bounds(x)
        if self.data is None:
            return Bracket.sure(low, high)
        down, up, se = self.data.at(x)
        return Bracket((low - down).clamp(min=0), (high + up).clamp(max=1), se)

    def data_error(self, x: Tensor, level: float = 0.95) -> float:
        """What the data adds to the half-width of an interval, at the most over all x."""
        if self.data is None:
            return 0.0
        if isinstance(self.data, Halves):
            down, up, se = self.data.at(x)
            return float(((down + up) / 2 + normal_deviate(level) * se).max())
        (low, high), (least, most) = self.seen.quick_bounds(x), self.data.bounds(x)
        return float(((most - high) + (low - least)).max()) / 2

    def interval(self, low: Tensor, high: Tensor, se: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Bounds that hold with this probability, from a bracket that holds up to noise."""
        middle = (low + high) / 2
        z = bracket_deviate(level, high - low, (middle * (1 - middle) / self.mass + se.square()).sqrt())
        down, up = share_bound(low, z, self.mass), share_bound(high, -z, self.mass)
        down, up = low - torch.hypot(low - down, z * se), high + torch.hypot(up - high, z * se)
        return torch.where(low > SUMS, down.clamp(min=0), 0.0), torch.where(high < 1 - SUMS, up.clamp(max=1), 1.0)

    def band(self, low: Tensor, high: Tensor, se: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """The same for all x at once: the noise of the starts is a Brownian bridge of variance F(1 − F)/ν.

        That is 1/(4ν) at the most; the variance of the data is added to it.
        """
        width = 2 * kolmogorov(level) * (1 / (4 * self.mass) + se.square()).sqrt()
        return (low - width).clamp(min=0), (high + width).clamp(max=1)
