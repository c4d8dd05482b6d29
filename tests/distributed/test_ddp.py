"""DistributedDataParallel: processes on split batches are one process on the joint batch, to rounding."""

from __future__ import annotations

import math

import pytest
import torch

import ddp_cases
from ddp_cases import CASES
from util import F64, in_processes

OF_FOUR = ["watch", "no_sync", "uneven", "sgd"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process ends with, by the number of processes and the case."""
    runs = {}
    for world, names in ((2, list(CASES)), (4, OF_FOUR)):
        store = tmp_path_factory.mktemp("store") / str(world)
        runs[world] = in_processes(world, ddp_cases.worker, world, names, store)
    return runs


@pytest.mark.parametrize(("world", "name"), [(2, name) for name in CASES] + [(4, name) for name in OF_FOUR])
def test_split_batches_are_the_joint_batch(found, world, name):
    w, rate = ddp_cases.run(name, 0, world, alone=True)
    assert math.isfinite(rate)
    for process in found[world]:
        theirs, their_rate = process[name]
        assert theirs == found[world][0][name][0]  # bit for bit
        assert their_rate == pytest.approx(rate, rel=1e-7)
        torch.testing.assert_close(torch.tensor(theirs, dtype=F64), w, rtol=1e-7, atol=1e-9)


def test_a_process_that_runs_out_of_data_joins(tmp_path):
    (first, said), (second, also) = in_processes(2, ddp_cases.uneven_ends, 2, tmp_path / "store")
    assert first == second
    assert first[-2][0] == 99  # steps of both; the first one learns bases and does not move
    assert "Join([model, opt])" in said
    assert said == also
