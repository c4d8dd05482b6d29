"""The inference loop as it is timed and weighed: a source with a clock of its own, and the two methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from infhess.active import infer_steps
from infhess.curvature import Products
from infhess.posterior import Isotropic

STEPS = 16
PRIOR = Isotropic(mean=1.0, scale=1.0, noise=0.1)


class Clocked:
    """A diagonal matrix as a source; the time inside of it does not count as the loop's."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.d = torch.rand(size, generator=generator) + 0.5
        self.g = torch.randn(size, generator=generator)
        self.seconds = 0.0
        self.turn = 0

    def _clocked(self, compute: Callable[[], Tensor]) -> Tensor:
        start = time.perf_counter()
        result = compute()
        self.seconds += time.perf_counter() - start
        return result

    def gradient(self) -> Tensor:
        """A gradient that differs from call to call at little cost: the same numbers, moved along."""
        self.turn += 1
        return self._clocked(lambda: self.g.roll(self.turn * 7919))

    def product(self, s: Tensor) -> Tensor:
        """diag(d) s."""
        return self._clocked(lambda: self.d * s)

    def source(self) -> Products:
        """As the library takes it."""
        return Products(self.product, self.gradient, len(self.d))


def methods() -> dict[str, Callable[[Products], Iterator[Any]]]:
    """The two methods of infhess; the paper's with its prior given, so that the pilot is not part of the loop."""
    return {
        "paper": lambda source: infer_steps(source, STEPS, method="paper", prior=PRIOR),
        "curvature": lambda source: infer_steps(source, STEPS),
    }
