"""Held-out problems: they are marked as such, and what they compute is what they say."""

from __future__ import annotations

import torch
from torch import nn

from infhess_bench.problems.held_out import HELD_OUT, graphs, ratings, unit_square
from infhess_bench.problems.held_out_nets import GraphNet, LowRankAdapter, Recommender, Residuals, Variational
from infhess_bench.problems.net_problems import DEEP, FULL


def test_held_out_problems_are_new_and_marked_as_not_seen():
    assert len(HELD_OUT) >= 6
    assert not HELD_OUT.keys() & {**DEEP, **FULL}.keys()
    assert not any(problem.seen for problem in HELD_OUT.values())


def test_derivatives_that_go_forward_are_those_of_autograd():
    torch.manual_seed(0)
    net = Residuals(width=8).double()
    points = torch.rand(5, 3, dtype=torch.float64)
    points[:, 2] = torch.tensor([0, 0, 1, 0, 1])
    xy = points[:, :2].clone().requires_grad_()
    u = net.layers[-1](torch.tanh(net.layers[2](torch.tanh(net.layers[1](torch.tanh(net.layers[0](xy)))))))[:, 0]
    (slopes,) = torch.autograd.grad(u.sum(), xy, create_graph=True)
    laplacian = sum(torch.autograd.grad(slopes[:, i].sum(), xy, create_graph=True)[0][:, i] for i in (0, 1))
    torch.testing.assert_close(net(points), torch.where(points[:, 2] > 0.5, 10 * u, -laplacian))


def test_generated_data_has_the_shapes_that_its_nets_take():
    (pairs, rating), _ = ratings()
    assert Recommender(400, 300)(pairs[:3]).shape == rating[:3].shape
    (points, f), _ = unit_square()
    assert Residuals()(points[:3]).shape == f[:3].shape
    on_border = points[points[:, 2] > 0.5, :2]
    assert bool(((on_border == 0) | (on_border == 1)).any(1).all())
    (edges, classes), _ = graphs()
    assert bool((edges == edges.transpose(1, 2)).all())
    assert GraphNet()(edges[:3]).shape == (3, 4)
    assert set(classes.tolist()) == {0, 1, 2, 3}


def test_nets_with_noise_have_none_where_they_are_evaluated_and_low_rank_factors_begin_as_the_layer():
    net, x = Variational(12, 8, 2), torch.rand(3, 12)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))
    layer = nn.Linear(4, 3)
    assert torch.equal(LowRankAdapter(layer)(x[:, :4]), layer(x[:, :4]))
