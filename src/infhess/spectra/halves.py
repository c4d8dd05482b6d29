"""How unread data would change a distribution of eigenvalues, estimated from the two halves of what was read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from infhess.spectra.quadrature import Quadrature

PLACES = 96  # places to compare halves and whole: at least half, at most twice as many
AROUND = 3  # neighbouring places on both sides: their largest change and mean variance count


@dataclass(frozen=True)
class Halves:
    """How far the share of eigenvalues at or below x may fall or rise with all of the data, and a standard error.

    F_m is the distribution function for a sample of m points. It is biased: noise spreads eigenvalues, and a small sample
    misses directions. All n points are a sample too, so F_n − F_M is the change over log₂(n/M) doublings of the data. The last
    doubling was observed: from F_{M/2}, the mean of both halves, to F_M. Further ones are assumed to change no more, in the
    same direction, as holds if the bias falls as a power of m. The spread (F_A − F_B)/2 of the halves is the noise of F_M.
    """

    x: Tensor
    down: Tensor
    up: Tensor
    variance: Tensor

    def at(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The largest fall, the largest rise and the standard error at each x: the larger values of the two places around x."""
        above = torch.searchsorted(self.x, x).clamp(max=len(self.x) - 1)
        below = (above - 1).clamp(min=0)
        down, up, variance = (torch.maximum(v[below], v[above]) for v in (self.down, self.up, self.variance))
        return down, up, variance.sqrt()


def halves(
    whole: Quadrature, parts: tuple[Quadrature, Quadrature], doublings: float, population_factor: float
) -> Halves:
    """Compare quadratures from the same starts, whose noise cancels in differences; extrapolate over `doublings` of the data.

    `population_factor` is the variance factor 1 − M/n.
    """
    x = _places(whole)
    width = _spacing(x)
    F, A, B = (_smoothed(measure, x, width) for measure in (whole, *parts))
    change = doublings * ((A + B) / 2 - F)
    variance = population_factor * _pooled(((A - B) / 2).square(), avg_pool1d, count_include_pad=False)
    down, up = (_pooled(side, max_pool1d).clamp(min=0) for side in (change, -change))
    return Halves(x, down, up, variance)


def doublings(points: int, population: int) -> float:
    """Number of doublings of a sample until it is all of the data."""
    return math.log2(max(1.0, population / points))


def _places(measure: Quadrature) -> Tensor:
    """Gauss nodes: dense where there are many eigenvalues, one at each isolated eigenvalue."""
    nodes = measure.nodes()[0].flatten().sort().values
    return nodes[:: max(1, len(nodes) // PLACES)].contiguous()


def _spacing(x: Tensor) -> Tensor:
    """Distance of each place to its neighbours: the resolution there."""
    ends = torch.nn.functional.pad(x[None, None], (1, 1), mode="replicate")[0, 0]
    return (ends[2:] - ends[:-2]) / 2


def _smoothed(measure: Quadrature, x: Tensor, width: Tensor) -> Tensor:
    """The distribution function at each x, with its steps smoothed to the given width."""
    theta, weights, _ = (part.flatten() for part in measure.nodes())
    away = (x[:, None] - theta) / width.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    shares: Tensor = torch.special.ndtr(away) @ weights
    return shares


def _pooled(values: Tensor, pool: Callable[..., Tensor], **options: bool) -> Tensor:
    return pool(values[None, None], 2 * AROUND + 1, 1, AROUND, **options)[0, 0]
