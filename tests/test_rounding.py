"""The measure of rounding, on maps whose amplification is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rounding import MULTIPLE, Spread, rounded, spread
from util import randn


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_move_by_half_a_unit_in_the_last_place(dtype):
    w = nn.Parameter(randn(4000, dtype=torch.float64))
    before = w.detach().clone()
    rounded([w], dtype, 1)
    moved = (w.detach() / before - 1).std()
    assert 0.4 < float(moved) / torch.finfo(dtype).eps < 0.6


def test_the_first_draw_is_the_run_itself():
    w = randn(7)
    rounded([w], torch.bfloat16, 0)
    assert torch.equal(w, randn(7))


@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_the_spread_is_what_the_run_makes_of_rounding(factor):
    def run(draw):
        w = torch.ones(100, dtype=torch.float64)
        rounded([w], torch.float32, draw)
        return factor * w

    u = torch.finfo(torch.float32).eps / 2
    found = spread(run)
    assert 0.8 < found.distance / (factor * u * 10) < 1.6  # √100 entries
    found.holds(found.end + 0.5 * factor * u)
    with pytest.raises(AssertionError, match="where rounding allows"):
        found.holds(found.end + 10 * factor * u)


def test_steps_that_do_not_amplify_add_the_root_of_their_number():
    found = Spread(torch.zeros(1), 1.0)
    found.holds(torch.full((1,), 9.9 * MULTIPLE), steps=100)
    with pytest.raises(AssertionError):
        found.holds(torch.full((1,), 10.1 * MULTIPLE), steps=100)


def test_a_run_that_rounding_does_not_change_may_differ_in_the_last_place_of_its_end():
    found = spread(lambda draw: 1.0)
    assert found.distance == torch.finfo(torch.float64).eps
    found.holds(1.0 + 2e-16)
    with pytest.raises(AssertionError):
        found.holds(1.0 + 2e-15)


def test_ends_of_different_shapes_do_not_agree():
    with pytest.raises(AssertionError):
        Spread(torch.ones(3), 1.0).holds(torch.ones(1))
