"""DistributedDataParallel: processes on split batches are one process on the joint batch, to rounding."""

from __future__ import annotations

import math

import pytest

import ddp_cases
from ddp_cases import CASES, OF_FOUR
from rounding import DRAWS, spread_of


@pytest.mark.parametrize(("world", "name"), [(2, name) for name in CASES] + [(4, name) for name in OF_FOUR])
def test_split_batches_are_the_joint_batch(request, world, name):
    found = [
        process["ddp"][name]
        for process in (request.getfixturevalue("four") if world == 4 else request.getfixturevalue("two")[1])
    ]
    joint = [ddp_cases.run(name, 0, world, alone=True, draw=draw) for draw in range(DRAWS + 1)]
    w, rate = (spread_of(ends) for ends in zip(*joint))
    assert math.isfinite(rate.end)
    for theirs, their_rate in found:
        assert theirs == found[0][0]  # bit for bit
        rate.holds(their_rate, ddp_cases.STEPS)
        w.holds(theirs, ddp_cases.STEPS)


def test_a_process_that_runs_out_of_data_joins(two):
    (first, said, _), (second, also, _) = (process["join"] for process in two[1])
    assert first == second
    assert first[-2][0] == 63  # steps of both; the first one learns bases and does not move
    assert "Join([model, opt])" in said
    assert said == also


def test_at_the_end_of_a_join_each_tensor_of_the_state_is_broadcast_once(two):
    for process in two[1]:
        _, _, (sent, held) = process["join"]
        assert sent == held > 1
