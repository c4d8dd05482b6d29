"""Products over fresh data: chunks of it, each with its weight, and how much of all the data they leave unread."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Draw(NamedTuple):
    """Products of k vectors with C chunks of fresh data.

    products (C, k, N); weights (C,), the share of the points in each chunk; unread, the variance factor 1 − M/n of a sample
    without replacement from a finite population, and 1 where that is not known.
    """

    products: Tensor
    weights: Tensor
    unread: float

    @property
    def noise_is_known(self) -> bool:
        """Whether the chunks show their noise: there are two at the least, or there is none since all data was read."""
        return len(self.weights) > 1 or self.unread == 0


def even(products: list[list[Tensor]]) -> Draw:
    """Chunks of equal weight from a population without end."""
    C = len(products)
    return Draw(torch.stack([torch.stack(ps) for ps in products]), torch.full((C,), 1 / C, dtype=torch.float64), 1.0)
