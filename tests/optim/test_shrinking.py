"""Decay without a constant: half of what noise adds to the length of a matrix is taken off, in any units."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from infhess.optim.rate.settings import KRONECKER

EVERY = int(KRONECKER.noise_every)


def noise(model, units, scale):
    """A loss whose gradient is noise, on a bowl that is so flat that it hardly pulls; of weights in these units."""

    def loss(batch):
        pairs = [(p / units, b) for p, b in zip(model.parameters(), batch)]
        return scale * sum((w * b).sum() + 1e-3 * w.square().sum() for w, b in pairs)

    return loss


def trained(steps, *, weight_decay=None, units=1.0, loss_units=1.0, scaling="kronecker", seed=0):
    torch.manual_seed(0)
    model = nn.Linear(12, 8).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(units)
    opt = infhess.RateFree(model.parameters(), scaling=scaling, weight_decay=weight_decay, points=32)
    draw, loss = torch.Generator().manual_seed(seed), noise(model, units, loss_units)
    for _ in range(steps):
        batch = tuple(torch.randn(p.shape, generator=draw, dtype=p.dtype) for p in model.parameters())

        def closure(batch=batch):
            opt.zero_grad()
            value = loss(batch)
            value.backward()
            return value

        opt.step(closure)
    return model, opt


def test_what_is_taken_off_is_half_of_what_the_steps_add():
    """The first time, after so many steps: z of both runs differs by ½ · 8 · ½ (|step|/|W|)² W, and biases by nothing."""
    steps = EVERY + 1  # the first one moves nothing
    (_, before), (with_decay, opt), (_, other) = trained(steps - 1), trained(steps), trained(steps, weight_decay=0.0)
    weight, bias = with_decay.weight, with_decay.bias
    y = before.param_groups[0]["params"][0].detach()
    z = other.state[other.param_groups[0]["params"][0]]["z"]
    step = z - before.state[before.param_groups[0]["params"][0]]["z"]
    turn = min(float(step.norm() / y.norm()), KRONECKER.widest_turn)
    expected = z - 0.5 * EVERY * KRONECKER.shrinkage * turn**2 * y
    torch.testing.assert_close(opt.state[weight]["z"], expected, rtol=1e-10, atol=1e-12)
    assert not torch.equal(expected, z)
    assert torch.equal(opt.state[bias]["z"], other.state[other.param_groups[0]["params"][1]]["z"])


def test_noise_makes_weights_longer_and_the_decay_keeps_them_shorter():
    (_, opt), (_, free) = trained(400), trained(400, weight_decay=0.0)
    length, without = (float(o.state[o.param_groups[0]["params"][0]]["z"].norm()) for o in (opt, free))
    assert length < 0.9 * without


@pytest.mark.parametrize(("units", "loss_units"), [(1e3, 1.0), (1e-3, 1.0), (1.0, 1e3), (1e3, 1e-3)])
def test_it_does_not_depend_on_units(units, loss_units):
    (model, _), (scaled, _) = trained(40), trained(40, units=units, loss_units=loss_units)
    for p, q in zip(model.parameters(), scaled.parameters()):
        torch.testing.assert_close(q.detach() / units, p.detach(), rtol=1e-6, atol=1e-9)


def test_the_diagonal_scaling_has_none_by_default():
    model = nn.Linear(3, 2)
    assert infhess.RateFree(model.parameters(), scaling="diagonal").param_groups[0]["weight_decay"] == 0
    assert infhess.RateFree(model.parameters()).param_groups[0]["weight_decay"] is None


def test_a_checkpoint_says_how_weights_decay():
    _, opt = trained(20, weight_decay=0.0)
    other = infhess.RateFree(nn.Linear(12, 8).double().parameters())
    other.load_state_dict(opt.state_dict())
    assert other.param_groups[0]["weight_decay"] == 0


def test_a_group_may_have_its_own():
    torch.manual_seed(0)
    free, decaying = nn.Linear(6, 6), nn.Linear(6, 6)
    groups = [{"params": [free.weight], "weight_decay": 0.0}, {"params": [decaying.weight]}]
    assert [g["weight_decay"] for g in infhess.RateFree(groups).param_groups] == [0.0, None]


@pytest.mark.parametrize("weight_decay", [-1.0, float("nan"), "much"])
def test_a_bad_decay_is_refused(weight_decay):
    with pytest.raises((ValueError, TypeError), match="weight_decay"):
        infhess.RateFree(nn.Linear(2, 2).parameters(), weight_decay=weight_decay)
