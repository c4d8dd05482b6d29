"""FSDP2: sharded parameters train as whole ones do on the joint batch, by differences of gradients."""

from __future__ import annotations

import math

import pytest
import torch

import fsdp_cases
from fsdp_cases import WIDTHS
from rounding import DRAWS, spread_of
from util import F64


@pytest.fixture
def run(two):
    return [process["fsdp"] for process in two[1]]


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
@pytest.mark.parametrize("width", list(WIDTHS))
def test_two_processes_are_one_on_the_joint_batch(run, width, scaling):
    joint = [fsdp_cases.alone(width, 2, scaling, draw=draw) for draw in range(DRAWS + 1)]
    w, averaged, rate = (spread_of(ends) for ends in zip(*joint))
    parts = [found[width, scaling] for found in run]
    for theirs, their_average, their_rate, _ in parts:
        rate.holds(their_rate, fsdp_cases.STEPS)
        w.holds(theirs, fsdp_cases.STEPS)
        averaged.holds(their_average, fsdp_cases.STEPS)
    n = WIDTHS[width]
    numbers = {"z": 6 * n, "averaged": 6 * n, "exp_avg_sq": 6 * n}
    numbers |= {"left": n * n, "left_basis": n * n, "right": 36, "right_basis": 36} if scaling == "kronecker" else {}
    for name, number in numbers.items():  # each process has its part of the state
        assert sum(part[3][name] for part in parts) == number, name


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
@pytest.mark.parametrize("width", list(WIDTHS))
def test_distributed_checkpoints_resume_bit_for_bit(run, width, scaling):
    assert all(found["resumed", width, scaling] for found in run)


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
def test_a_checkpoint_resumes_on_another_number_of_processes(run, four, scaling):
    there = torch.tensor(run[0]["uneven", scaling][0])
    for process in four:
        torch.testing.assert_close(torch.tensor(process["resumed"][scaling]), there, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
def test_tensor_parallel_layers_are_whole_ones(run, scaling):
    w, *_ = fsdp_cases.alone("even", 1, scaling)
    for found in run:
        there = torch.tensor(found["tensor parallel"][scaling], dtype=F64)
        torch.testing.assert_close(there, w, rtol=1e-6, atol=1e-8)


def test_mixed_precision_trains(run):
    for found in run:
        before, after = found["half"]
        assert after < before - 0.01


def test_what_cannot_work_is_refused(run):
    for found in run:
        assert len(found["refused"]) == 5
        assert all("step(closure)" in said for said in found["refused"])


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
def test_a_full_state_dict_has_whole_tensors_and_goes_on(run, scaling):
    shapes = next(found["full"][scaling][0] for found in run if found["full"][scaling][0])
    assert shapes["0.weight"]["averaged"] == [15, 6]
    assert scaling == "diagonal" or shapes["0.weight"]["left_basis"] == [1, 15, 15]
    assert all(found["full"][scaling][1] for found in run)


def test_what_a_step_sends(run):
    """Sums of a few numbers; the rotated scaling gathers gradient and state of each matrix, and of no vector."""
    blocks = {(15, 6): (1, 15, 1, 6), (3, 15): (1, 3, 1, 15)}  # rows, columns: blocks on either side, and their lengths

    def padded(first, *rest):  # a tensor is cut along its first dimension, into parts of one length
        return 2 * math.ceil(first / 2) * math.prod(rest)

    gathered = sum(
        2 * padded(m, n) + 2 * padded(left, a, a) + 2 * padded(right, b, b)
        for (m, n), (left, a, right, b) in blocks.items()
    )
    for found in run:
        numbers = {scaling: of_tensors for scaling, (of_tensors, _) in found["sent"].items()}
        assert numbers == {"diagonal": 0, "kronecker": gathered}
        # |g| of each of the four tensors, |Dg|, and at times |w| and ⟨g, z − x⟩.
        assert all(5 <= sums <= 7 for _, sums in found["sent"].values())
