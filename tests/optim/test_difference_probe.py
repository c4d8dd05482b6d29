"""Probes by a second run of the closure: what they read, and what they leave behind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import infhess
from infhess.optim.rate.difference_probe import DifferenceProbe
from watch_cases import F64, batch, mlp, net, train, weights


class Once(torch.autograd.Function):
    """x ↦ x², whose backward pass cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def rates(model, differences, steps=60):
    opt = infhess.RateFree(model.parameters(), scaling="diagonal", points=40)
    opt._rate_state.differences = float(differences)
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    return train(opt, loss, (batch("mlp", t) for t in range(steps)), "closure"), opt


def smooth():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(F64)


def test_on_a_quadratic_it_reads_what_products_read():
    seen = []
    for differences in (0.0, 1.0):
        w = nn.Parameter(torch.tensor([3.0, -2.0], dtype=F64))
        opt = infhess.RateFree([w], points=32)
        opt._rate_state.differences = differences

        def closure(w=w, opt=opt):
            opt.zero_grad()
            value = (torch.tensor([5.0, 0.2], dtype=F64) * w.square()).sum()
            value.backward()
            return value

        for _ in range(40):
            opt.step(closure)
        seen.append(torch.cat([w.detach(), torch.tensor([float(opt.rate)], dtype=F64)]))
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-6, atol=1e-9)


def test_on_a_smooth_net_both_allow_for_about_the_same():
    exact, difference = rates(smooth(), False)[0], rates(smooth(), True)[0]
    assert abs(math.log(float(difference[-1] / exact[-1]))) < 0.3


def test_a_second_run_leaves_nothing_behind():
    torch.manual_seed(0)
    norm, calls = nn.BatchNorm1d(6), []
    model = nn.Sequential(norm, nn.Dropout(0.3), *mlp()).to(F64)
    model.register_forward_hook(lambda *_: calls.append(1))
    opt = infhess.RateFree(model.parameters(), scaling="diagonal", points=40)
    opt._rate_state.differences = 1.0
    x, y = batch("mlp", 0)
    kept = []

    def closure():
        opt.zero_grad()
        value = F.cross_entropy(model(x), y)
        value.backward()
        kept.append([p.grad.clone() for p in model.parameters()])
        return value

    torch.manual_seed(7)
    opt.step(closure)
    assert len(calls) == 2
    assert int(norm.num_batches_tracked) == 1
    after = torch.rand(1)
    torch.manual_seed(7)
    F.dropout(torch.ones(40, 6, dtype=F64), 0.3)
    assert torch.equal(torch.rand(1), after)  # as after one run
    for p, g in zip(model.parameters(), kept[0]):
        assert torch.equal(p.grad, g)


def test_an_error_in_the_second_run_puts_weights_and_gradients_back():
    model, calls = net("mlp"), []
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    opt._rate_state.differences = 1.0
    x, y = batch("mlp", 0)
    before = weights(model)

    def closure():
        opt.zero_grad()
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("second")
        value = F.cross_entropy(model(x), y)
        value.backward()
        return value

    with pytest.raises(KeyError):
        opt.step(closure)
    assert torch.equal(weights(model), before)
    assert all(p.grad is not None for p in model.parameters())


def test_where_second_derivatives_are_out_of_reach_a_closure_goes_on_with_differences():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)).to(F64)
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    x, y = batch("mlp", 0)

    def value():
        return F.cross_entropy(model[1](Once.apply(model[0](x))), y)

    def closure():
        opt.zero_grad()
        loss = value()
        loss.backward()
        return loss

    first = float(opt.step(closure).detach())
    assert any("differences of gradients" in note for note in opt.report.notes)
    for _ in range(200):
        opt.step(closure)
    assert float(value().detach()) < 0.5 * first
    assert float(opt.rate) > 0


@pytest.mark.parametrize("lr", [1.0, 0.1, 0.01])
def test_the_distance_is_that_of_the_coming_step_under_a_schedule(lr, monkeypatch):
    """The newest iterate moves y by at least that; what the average moves comes on top."""
    model, distances, moves = smooth(), [], []
    opt = infhess.RateFree(model.parameters(), scaling="diagonal", points=40)
    torch.optim.lr_scheduler.LambdaLR(opt, lambda _: lr)
    opt._rate_state.differences = 1.0
    read = DifferenceProbe.read

    def kept(self, g, scaled):
        reading = read(self, g, scaled)
        distances.append(self._distance * reading.direction)
        return reading

    monkeypatch.setattr(DifferenceProbe, "read", kept)
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    for t in range(300):
        before, seen = weights(model), len(distances)
        train(opt, loss, [batch("mlp", t)], "closure")
        if len(distances) > seen and t > 100:
            moves.append(float((weights(model) - before).norm()) / distances[-1])
    assert len(moves) >= 2
    assert all(0.2 < ratio < 5 for ratio in moves), moves
