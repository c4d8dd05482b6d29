"""Batches that are read from epoch to epoch."""

from __future__ import annotations

import torch

from infhess_bench.problems.shuffled import CountedStream, Shuffled


def test_reading_goes_on_from_epoch_to_epoch():
    x = torch.arange(10.0)[:, None]
    reading = CountedStream(Shuffled((x, x), 4, torch.Generator().manual_seed(0)))
    sizes = [len(next(reading)[0]) for _ in range(5)]
    assert sizes == [4] * 5
    assert reading.points == 20
