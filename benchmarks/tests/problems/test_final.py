"""The final problems: they are new and marked as not seen, and what they compute is what they say."""

from __future__ import annotations

import pytest
import torch

from infhess_bench.problems import final
from infhess_bench.problems.final import FINAL, LEVELS, Burgers, Clicks, pinball
from infhess_bench.problems.held_out import HELD_OUT
from infhess_bench.problems.net_problems import DEEP, FULL
from infhess_bench.problems.text import BRACKETS, nested


def test_final_problems_are_new_and_marked_as_not_seen():
    assert len(FINAL) >= 6
    assert not FINAL.keys() & {**DEEP, **FULL, **HELD_OUT}.keys()
    assert not any(problem.seen for problem in FINAL.values())


def test_residuals_of_burgers_equation_are_those_of_autograd():
    torch.manual_seed(0)
    net = Burgers(width=6).double()
    points = torch.rand(4, 3, dtype=torch.float64).round(decimals=3)
    points[:, 2] = torch.tensor([0, 1, 0, 0])
    xt = points[:, :2].clone().requires_grad_()
    u = net.jet(xt)[0]
    (slopes,) = torch.autograd.grad(u.sum(), xt, create_graph=True)
    (second,) = torch.autograd.grad(slopes[:, 0].sum(), xt)
    inside = slopes[:, 1] + u * slopes[:, 0] - net.viscosity * second[:, 0]
    torch.testing.assert_close(net(points), torch.where(points[:, 2] > 0.5, 10 * u, inside))


def test_the_pinball_loss_is_least_at_quantiles():
    draw = torch.Generator().manual_seed(0)
    y = torch.randn(20_000, 1, generator=draw)
    q = torch.quantile(y, torch.tensor(LEVELS))
    least = pinball(q.expand(len(y), -1), y)
    for i in range(len(LEVELS)):
        for shift in (-0.1, 0.1):
            moved = q.clone()
            moved[i] += shift
            assert pinball(moved.expand(len(y), -1), y) > least


def test_products_of_embeddings_are_those_of_all_pairs():
    torch.manual_seed(0)
    net, codes = Clicks((5, 4, 3)).double(), torch.tensor([[1, 2, 0], [4, 3, 2]])
    a, b, c = (table(codes[:, i]) for i, table in enumerate(net.tables))
    pairs = (a * b + a * c + b * c).sum(1)
    expected = net.net(torch.cat([a, b, c], 1))
    torch.testing.assert_close(net(codes), expected + torch.stack([torch.zeros(2).double(), pairs], 1))


def test_brackets_are_balanced_and_the_same_for_a_seed():
    text = nested(2000, 3)
    assert text == nested(2000, 3) != nested(2000, 4)
    closing, open_ones = dict(map(reversed, BRACKETS)), []
    for sign in text:
        if sign in closing:
            assert open_ones.pop() == closing[sign]
        elif sign not in "xyz ":
            open_ones.append(sign)
        assert sign != " " or not open_ones


@pytest.mark.parametrize("make", [final.shock, final.uneven, final.visits])
def test_generated_data_is_the_same_each_time(make):
    (x, y), (tx, ty) = make()
    again = make()[0]
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])
    assert len(x) == len(y) > len(tx) == len(ty) == 1000
