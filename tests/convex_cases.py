"""Small convex problems, and batches that count themselves as they are read."""

from __future__ import annotations

import os

import pytest
import torch

from infhess_bench.problems.convex_problems import ConvexProblem, huber, poisson, softmax, squares
from infhess_bench.problems.convex_problems import logistic as logistic_loss
from infhess_bench.problems.shuffled import Shuffled

needs_data = pytest.mark.skipif(
    not os.environ.get("INFHESS_DATA"), reason="$INFHESS_DATA is not set: the real files are not here"
)


def small(loss=squares, outputs=1, n=300, d=12, l2=0.0):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) * torch.logspace(0.5, -0.5, d, dtype=torch.float64)
    f = x @ torch.randn(d, outputs, generator=g, dtype=torch.float64)
    noise = torch.randn(n, outputs, generator=g, dtype=torch.float64)
    y = {
        squares: (f + 0.1 * noise)[:, 0],
        logistic_loss: torch.sign(f + noise)[:, 0],
        softmax: (f + noise).argmax(1),
        poisson: torch.exp(f + 0.1 * noise)[:, 0].clamp(max=9).round(),
        huber: (f + noise)[:, 0],
    }[loss]
    return ConvexProblem((x, y), loss, l2, outputs, test=(x[:50], y[:50]))


class Counting(Shuffled):
    """Batches that are counted by themselves as they leave."""

    read = 0

    def __iter__(self):
        for batch in super().__iter__():
            Counting.read += len(batch[0])
            yield batch


class CountingAll(Counting):
    """Also what is read at once."""

    def whole(self):
        data = super().whole()
        Counting.read += len(data[0])
        return data
