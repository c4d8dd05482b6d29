"""What the wrapper knows of its base: momentum, divisors, weight decay, and the rate that counts as 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from infhess.optim.base_optimizers import (
    Momentum,
    decay,
    decayed,
    direction,
    made_with_rate,
    momentum_of,
    rate_is_known,
    reference_rate,
    sqrt_scaling,
)
from util import F64, close, randn


def one(n=3):
    return nn.Parameter(torch.ones(n, dtype=F64))


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ({"momentum": 0.9, "dampening": 0.25}, (0.9, 0.75)),
        ({"momentum": 0.9}, (0.9, 1.0)),
        ({"momentum": 0.0, "betas": (0.8, 0.99)}, (0.8, pytest.approx(0.2))),
        ({"lr": 0.1}, (0.0, 1.0)),
    ],
)
def test_momentum_is_read_off_the_group(group, expected):
    assert tuple(momentum_of(group)) == expected


@pytest.mark.parametrize(("decay_", "weight"), [(0.9, 1.0), (0.9, 0.1), (0.5, 0.25)])
def test_corrected_momentum_moves_as_far_as_none_on_a_constant_gradient(decay_, weight):
    v = 0.0
    for _ in range(2000):
        v = decay_ * v + weight
    assert Momentum(decay_, weight).correction * v == pytest.approx(1.0)
    assert Momentum(decay_, 0.0).correction == 1.0


def test_decay_adds_to_curvature_outside_of_p_and_inside_of_adams_scaling():
    def groups():
        return [{"params": [one()], "weight_decay": 0.5}, {"params": [one()], "weight_decay": 0.1}]

    root = torch.tensor([1.0, 3.0, 2.0], dtype=F64)
    assert decay(torch.optim.SGD(groups(), lr=1.0), None) == 0.5
    assert decay(torch.optim.Adam(groups(), lr=1.0), root) == 0.5 * 9
    assert decay(torch.optim.AdamW(groups(), lr=1.0), root) == 0.5
    assert decay(torch.optim.SGD([one()], lr=1.0), None) == 0.0


def test_a_step_takes_off_decoupled_decay_alone():
    for base, expected in (
        (torch.optim.AdamW([one()], lr=0.5, weight_decay=0.3), 0.15),
        (torch.optim.Adam([one()], lr=0.5, weight_decay=0.3), 0.0),
        (torch.optim.NAdam([one()], lr=0.5, weight_decay=0.3, decoupled_weight_decay=True), 0.15),
        (torch.optim.NAdam([one()], lr=0.5, weight_decay=0.3), 0.0),
    ):
        assert decayed(base, base.param_groups[0]) == expected


def test_the_rate_that_counts_as_one():
    bare, begun = [{"lr": 0.1}], [{"lr": 0.1, "initial_lr": 0.2}, {"lr": 0.1, "initial_lr": 0.3}]
    assert reference_rate(bare, 7.0, 100.0) == 7.0
    assert reference_rate(begun, 7.0, 0.0) == 0.3
    assert reference_rate(begun, 7.0, 0.4) == 0.4
    assert reference_rate([{**begun[0], "max_lr": 0.05}, begun[1]], 7.0, 0.4) == 0.05
    assert made_with_rate([*bare, *begun]) == 0.3
    assert math.isnan(made_with_rate([{}]))


def test_the_rate_of_bases_that_move_by_a_known_scaling_is_known():
    known = {
        name: getattr(torch.optim, name)([one()], lr=0.1)
        for name in ("SGD", "ASGD", "Adam", "Adagrad", "RAdam", "Rprop")
    }
    assert [name for name, base in known.items() if rate_is_known(base)] == ["SGD", "ASGD", "Adam", "Adagrad"]


def test_what_has_always_been_zero_takes_the_smallest_scaling_of_the_others():
    base = torch.optim.Adam([one(2), one(2)], lr=0.1, eps=1e-3)
    g = torch.tensor([4.0, 0.0, 1.0, 1e-3 / 2], dtype=F64)  # the last is not above ε
    D = 1 / (torch.tensor([4.0, 4.0, 1.0, 4.0], dtype=F64) + 1e-3)
    close(sqrt_scaling(base, g, g.square()), D.sqrt(), 1e-12)
    close(sqrt_scaling(base, g, 0 * g), torch.ones(4, dtype=F64), 1e-12)
    assert sqrt_scaling(torch.optim.SGD([one(2)], lr=0.1), g) is None


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
def test_rmsprop_divides_by_the_root_of_its_own_average(centered, steps):
    w = one(4)
    base = torch.optim.RMSprop([w], lr=0.1, alpha=0.7, eps=0.01, centered=centered)
    v = m = torch.zeros(4, dtype=F64)
    for i in range(steps):
        w.grad = randn(4, seed=i)
        v, m = 0.7 * v + 0.3 * w.grad**2, 0.7 * m + 0.3 * w.grad
        base.step()
    g = randn(4, seed=10)
    if steps == 0 or not centered:
        v = 0.7 * v + 0.3 * g**2
    divisor = (v - m**2 if centered and steps else v).sqrt() + 0.01
    close(sqrt_scaling(base, g, g.square()), divisor.rsqrt(), 1e-9)
    close(direction(base, g), g, 1e-12)
