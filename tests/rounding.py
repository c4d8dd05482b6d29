"""How far apart two runs may end that differ by rounding alone: measured where the test runs, not remembered from one machine.

Training amplifies rounding, and how much depends on the model, the optimizer and the number of steps. What another
processor, number of threads or compiler changes is the last place of each number. So a test that compares two
trajectories trains a few times more, from weights that are off by rounding, and asserts a multiple of how far those end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

DRAWS = 4
# The largest of four draws of a normal variable is about one standard deviation: this multiple allows for about four.
MULTIPLE = 4.0


class Spread(NamedTuple):
    """Where the run from the weights as they are ends, and how far from it the ends of runs from rounded weights are."""

    end: Tensor
    distance: float

    def holds(self, other, steps: int = 1) -> None:
        """Assert that another run ends within a multiple of what rounding does.

        `steps`: where training does not amplify rounding, that of the start counts no more than that of each later step, and
        the sum grows with the root of their number. Where it does, that of the start counts most: leave it out.
        """
        apart = distance(other, self.end)
        allowed = MULTIPLE * math.sqrt(steps) * self.distance
        assert apart <= allowed, f"{apart:.3g} apart, where rounding allows for {allowed:.3g}"


def distance(a, b) -> float:
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a - b).norm())


def rounded(params: Iterable[Tensor], dtype: torch.dtype, draw: int) -> None:
    """Multiply by 1 + u·noise, u half a unit in the last place of `dtype`: what rounding to it does. Draw 0 changes nothing."""
    if draw == 0:
        return
    g = torch.Generator().manual_seed(draw)
    u = torch.finfo(dtype).eps / 2
    for p in params:
        noise = torch.randn(p.shape, generator=g, dtype=torch.float64)
        p.detach().copy_(p.detach().double() * (1 + u * noise))


def spread(ends: Callable[[int], object]) -> Spread:
    """`ends(draw)` trains from weights through `rounded(weights, dtype, draw)` and returns its end, numbers or a tensor."""
    return spread_of([ends(draw) for draw in range(DRAWS + 1)])


def spread_of(ends) -> Spread:
    """The same of ends that are there, the first of them from the weights as they are.

    An end has a last place of its own, which another machine may round otherwise even where none of the draws did.
    """
    end, *others = (torch.as_tensor(e, dtype=e.dtype if torch.is_tensor(e) else torch.float64) for e in ends)
    unit = torch.finfo(end.dtype).eps * float(end.double().norm())
    return Spread(end, max(unit, *(distance(other, end) for other in others)))
