"""What was seen of a spectrum as bounds on its distribution function: from quadrature, from starts and from data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infhess.spectra.quadrature import Quadrature
from infhess.spectra.shares import bracket_deviate, kolmogorov, share_bound

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


@dataclass(frozen=True)
class Law:
    """Bounds on the share of eigenvalues at or below x.

    `starts` of N-vectors gave `seen`; none means that all eigenvalues are in it, with equal weights. `data` is what the rest of
    the data may change, None where all of it was read.
    """

    seen: Quadrature
    size: int
    starts: int
    data: Sampled | None

    @property
    def mass(self) -> float:
        """ν = VN/2 of the law of shares; beyond any number where there is no noise of starts."""
        return self.starts * self.size / 2 if self.starts else 1e18

    def bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Least and greatest share, up to the noise of the starts."""
        return self.seen.bounds(x) if self.data is None else self.data.bounds(x)

    def interval(self, low: Tensor, high: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """Bounds that hold with this probability, from those that hold up to the noise of the starts."""
        middle = (low + high) / 2
        se = (middle * (1 - middle) / self.mass).sqrt()
        z = bracket_deviate(level, high - low, se)
        down, up = share_bound(low, z, self.mass), share_bound(high, -z, self.mass)
        return torch.where(low > SUMS, down, 0.0), torch.where(high < 1 - SUMS, up, 1.0)

    def band(self, low: Tensor, high: Tensor, level: float) -> tuple[Tensor, Tensor]:
        """The same for all x at once: the noise of the starts is a Brownian bridge of variance F(1 − F)/ν."""
        width = kolmogorov(level) / self.mass**0.5
        return (low - width).clamp(min=0), (high + width).clamp(max=1)
