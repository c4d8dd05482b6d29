"""Small convex problems of the benchmarks, and batches that count themselves as they are read."""

from __future__ import annotations

import os

import pytest

from convex_cases import drawn
from infhess_bench.problems.convex_problems import ConvexProblem, squares
from infhess_bench.problems.shuffled import Shuffled

needs_data = pytest.mark.skipif(
    not os.environ.get("INFHESS_DATA"), reason="$INFHESS_DATA is not set: the real files are not here"
)


def small(loss=squares, outputs=1, n=300, d=12, l2=0.0):
    x, y = drawn(loss.__name__, outputs, n, d)
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
