"""The zero of a slope."""

from __future__ import annotations

import math

import pytest

from infhess.minimizing.line_search import LONGEST, SHORTEST, zero_of_slope


@pytest.mark.parametrize("zero", [0.05, 0.3, 0.9, 1.0, 1.7, 5.0])
def test_a_line_has_its_zero_found(zero):
    assert zero_of_slope(lambda a: a - zero, -zero) == pytest.approx(zero, rel=0.12)


@pytest.mark.parametrize("zero", [0.1, 0.6, 2.0])
def test_a_convex_function_with_a_wall(zero):
    """φ' of −log(1 + zero·1.01 − α) and a line: it rises without bound where the wall is."""
    wall = zero * 1.5

    def slope(a):
        return math.inf if a >= wall else 1 / (wall - a) - 1 / (wall - zero)

    found = zero_of_slope(slope, slope(0.0))
    assert 0 < found < wall
    assert abs(slope(found)) < 0.5 * abs(slope(0.0))


def test_bounds():
    assert zero_of_slope(lambda a: -1.0, -1.0) == LONGEST
    assert SHORTEST <= zero_of_slope(lambda a: math.inf, -1.0) < 0.01


def test_newtons_step_takes_one_evaluation():
    calls = []
    zero_of_slope(lambda a: calls.append(a) or a - 1.0, -1.0)
    assert calls == [1.0]
