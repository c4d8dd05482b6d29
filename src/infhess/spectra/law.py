"""Bounds on the distribution function of a spectrum, with the errors of quadrature, random starts and data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.spectra.halves import Halves
from infhess.spectra.quadrature import Quadrature
from infhess.spectra.shares import bracket_deviate, kolmogorov, normal_deviate, share_bound

SUMS = 1e-12  # rounding of the sums of weights, which total 1
SHIFTS = 24  # values of δ tried, over five orders of magnitude


@dataclass(frozen=True)
class Sampled:
    """The matrix H_M of a sample, values of δ, and the shares of its error E = H_M − H beyond ± δ.

    n(H ≤ x) ≤ n(H_M ≤ x + δ) + n(E > δ) for every δ ≥ 0, and n(H > x) ≤ n(H_M > x − δ) + n(E < −δ) (Weyl).
    """

    seen: Quadrature
    delta: Tensor
    lost: Tensor

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on the share for H, with the best δ for each x."""
        low, high = (
            self.seen.quick_bounds(x[:, None] - self.delta)[0],
            self.seen.quick_bounds(x[:, None] + self.delta)[1],
        )
        return (low - self.lost).amax(1).clamp(min=0), (high + self.lost).amin(1).clamp(max=1)


def sampled(seen: Quadrature, error: Quadrature) -> Sampled:
    """From quadratures of H_M and of a matrix with the distribution of E."""
    largest = 1.1 * error.nodes()[0].abs().max()
    delta = largest * torch.logspace(-5, 0, SHIFTS).to(seen.T)
    lost = 1 - error.quick_bounds(delta)[0] + error.quick_bounds(-delta)[1]
    lost[-1] = 0.0  # beyond the largest, with a margin of a tenth
    return Sampled(seen, delta, lost.clamp(min=0))


class Bracket(NamedTuple):
    """Least and greatest share before noise, and the standard error that the data adds to the noise of the starts."""

    low: Tensor
    high: Tensor
    se: Tensor

    @classmethod
    def sure(cls, low: Tensor, high: Tensor) -> Bracket:
        """A bracket without noise of the data."""
        return cls(low, high, torch.zeros_like(low))


@dataclass(frozen=True)
class Law:
    """Bounds on the share of eigenvalues at or below x.

    `seen` comes from `starts` N-vectors; 0 starts mean that it contains all eigenvalues, with equal weights. `data` is the
    possible change by unread data, estimated from halves or bounded by Weyl's inequality; None if all data was read.
    """

    seen: Quadrature
    size: int
    starts: int
    data: Sampled | Halves | None

    @property
    def mass(self) -> float:
        """ν = VN/2 in the distribution of shares; huge if there is no noise of starts."""
        return self.starts * self.size / 2 if self.starts else 1e18

    def bounds(self, x: Tensor) -> Bracket:
        """Least and greatest share, before the noise of starts and data."""
        if isinstance(self.data, Sampled):
            return Bracket.sure(*self.data.bounds(x))
        low, high = self.seen.bounds(x)
        if self.data is None:
            return Bracket.sure(low, high)
        down, up, se = self.data.at(x)
        return Bracket((low - down).clamp(min=0), (high + up).clamp(max=1), se)

    def data_error(self, x: Tensor, level: float = 0.95) -> float:
        """The most that sampling adds to the half-width of an interval, over all x."""
        if self.data is None:
            return 0.0
        if isinstance(self.data, Halves):
            down, up, se = self.data.at(x)
            return float(((down + up) / 2 + normal_deviate(level) * se).max())
        (low, high), (least, most) = self.seen.quick_bounds(x), self.data.bounds(x)
        return float(((most - high) + (low - least)).max()) / 2

    def interval(self, low: Tensor, high: Tensor, se: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Bounds that hold with this probability, from a bracket that holds before noise."""
        middle = (low + high) / 2
        z = bracket_deviate(level, high - low, (middle * (1 - middle) / self.mass + se.square()).sqrt())
        down, up = share_bound(low, z, self.mass), share_bound(high, -z, self.mass)
        down, up = low - torch.hypot(low - down, z * se), high + torch.hypot(up - high, z * se)
        return torch.where(low > SUMS, down.clamp(min=0), 0.0), torch.where(high < 1 - SUMS, up.clamp(max=1), 1.0)

    def band(self, low: Tensor, high: Tensor, se: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """The same for all x at once: the noise of the starts is a Brownian bridge of variance F(1 − F)/ν.

        That is at most 1/(4ν); the variance of the data is added to it.
        """
        width = 2 * kolmogorov(level) * (1 / (4 * self.mass) + se.square()).sqrt()
        return (low - width).clamp(min=0), (high + width).clamp(max=1)
