"""Preconditioned around each of torch's optimizers: before the first estimate and after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from contract import BASES, MEASURED, active, batches, each_base, flat, loss_of, net, same, steps, value_of, weights
from rounding import rounded, spread


@each_base
def test_before_the_first_estimate_it_is_its_base_bit_for_bit(base):
    one, other = net(), net()
    steps(one, BASES[base](one.parameters()))
    steps(other, infhess.Preconditioned(BASES[base](other.parameters()), rank=3))
    assert same(weights(one), weights(other))


@each_base
def test_after_an_update_it_goes_down(base):
    model, opt = active(base)
    before = value_of(model)
    steps(model, opt, 40)
    assert value_of(model) < before


def self_driven(base, lr, draw=0):
    """The weights after training with `observe`."""
    model = net()
    rounded(model.parameters(), torch.float32, draw)
    inner = BASES[base](model.parameters())
    inner.param_groups[0]["lr"] = lr
    opt, stream, loss = infhess.Preconditioned(inner, rank=3), batches(), loss_of(model)
    before = value_of(model)
    for _ in range(60):
        batch = next(stream)
        opt.zero_grad()
        loss(batch).backward()
        opt.observe(loss, batch)
        opt.step()
    assert value_of(model) < before
    return flat(model)


@pytest.mark.parametrize("base", MEASURED)
def test_self_driving_goes_down_from_any_rate(base):
    spread(lambda draw: self_driven(base, 1e-6, draw)).holds(self_driven(base, 1e2), steps=60)


def test_bases_that_do_not_fit_are_named():
    w = [nn.Parameter(torch.ones(2))]
    with pytest.raises(TypeError, match="LBFGS"):
        infhess.Preconditioned(torch.optim.LBFGS(w))
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer"):
        infhess.Preconditioned(w)
    with pytest.raises(ValueError, match="rank"):
        infhess.Preconditioned(torch.optim.SGD(w), rank=0)
    with pytest.raises(ValueError, match="blocks"):
        infhess.Preconditioned(torch.optim.SGD(w), blocks="layers")
    with pytest.raises(ValueError, match="step_length"):
        infhess.Preconditioned(torch.optim.SGD(w), step_length="newton")


@pytest.mark.parametrize("kind", ["foreach", "fused"])
@pytest.mark.parametrize("base", ["sgd", "momentum", "adam", "adamw"])
def test_kinds_of_the_base_agree(base, kind):
    def end(draw=0, **options):
        model = net()
        rounded(model.parameters(), torch.float32, draw)
        opt = infhess.Preconditioned(BASES[base](model.parameters(), **options), rank=3)
        steps(model, opt, 2)
        opt.update(loss_of(model), batches())
        steps(model, opt, 3)
        return flat(model)

    spread(lambda draw: end(draw, foreach=False)).holds(end(**{kind: True}), steps=5)


def test_adagrad_may_be_estimated_before_its_first_step():
    model = net()
    opt = infhess.Preconditioned(torch.optim.Adagrad(model.parameters(), lr=0.1), rank=3)
    opt.update(loss_of(model), batches())
    before = value_of(model)
    steps(model, opt, 40)
    assert value_of(model) < before - 0.01
