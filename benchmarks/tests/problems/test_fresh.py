"""The fresh problems: they are new and marked as not seen, and what they compute is what they say."""

from __future__ import annotations

import pytest
import torch

from bench_cases import needs_data
from infhess_bench.problems import fresh
from infhess_bench.problems.fresh import FRESH, SORTED, Dilated, Heat
from infhess_bench.problems.net_sets import SETS


def test_fresh_problems_are_new_and_marked_as_not_seen():
    assert len(FRESH) >= 6
    for title, problems in SETS.items():
        assert title == "fresh" or not FRESH.keys() & problems.keys()
    assert not any(problem.seen for problem in FRESH.values())


@pytest.mark.parametrize("name", ["sorting-transformer", "heat-residuals", "waves-gru", "text-dilated"])
def test_a_net_takes_its_data_and_its_loss_has_a_gradient(name):
    torch.manual_seed(0)
    problem = FRESH[name]
    model, (x, y) = problem.model(), problem.data
    problem.loss(model)((x[:8], y[:8])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_residuals_of_the_heat_equation_are_those_of_autograd():
    torch.manual_seed(0)
    net = Heat(width=6).double()
    points = torch.rand(4, 3, dtype=torch.float64)
    points[:, 2] = torch.tensor([0, 1, 0, 0])
    xt = points[:, :2].clone().requires_grad_()
    u = net.jet(xt)[0]
    (slopes,) = torch.autograd.grad(u.sum(), xt, create_graph=True)
    (second,) = torch.autograd.grad(slopes[:, 0].sum(), xt)
    inside = slopes[:, 1] - net.diffusivity * second[:, 0]
    torch.testing.assert_close(net(points), torch.where(points[:, 2] > 0.5, 10 * u, inside))


def test_a_dilated_net_does_not_look_ahead():
    torch.manual_seed(0)
    net, codes = Dilated(5, 8).double(), torch.randint(5, (2, 12))
    other = codes.clone()
    other[:, 7] = (other[:, 7] + 1) % 5
    same = net(codes).isclose(net(other)).all(2)
    assert same[:, :7].all()
    assert not same[:, 7].any()


def test_numbers_are_sorted():
    (x, y), _ = fresh.unsorted()
    assert x.shape[1] == SORTED
    assert (y.diff(dim=1) >= 0).all()
    assert torch.equal(x.square().sum(1), y.square().sum(1))


@needs_data
def test_a_digit_is_turned_by_the_angle_of_its_target():
    (x, y), _ = fresh.turned_digits()
    upright, angle = fresh.mnist_images()[0][0], torch.atan2(y[:, 1], y[:, 0])
    torch.testing.assert_close(y.norm(dim=1), torch.ones(len(y)))
    straight = angle.abs().argsort()[:20]  # by less than a degree
    assert (x[straight] - upright[straight]).abs().mean() < 0.02
    assert (x - upright).abs().mean() > 0.05


@pytest.mark.parametrize("make", [fresh.rod, fresh.unsorted, fresh.waves])
def test_generated_data_is_the_same_each_time(make):
    (x, y), (tx, ty) = make()
    again = make()[0]
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])
    assert len(x) == len(y) > len(tx) == len(ty) == 1000
