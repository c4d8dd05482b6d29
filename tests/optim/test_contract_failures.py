"""Updates that fail and batches that are bad leave everything as it was."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import infhess
from contract import active, batches, loss_of, same, steps, weights
from util import F64, randn


def test_an_update_that_fails_leaves_all_as_it_was():
    model, opt = active()
    before, held = opt.preconditioner.dense(), weights(model)
    loss = loss_of(model)
    for bad, data, error, message in (
        (lambda batch: loss(batch) * float("nan"), batches(), ValueError, "NaN|finite"),
        (loss, [], ValueError, "empty"),
        (lambda batch: batch[0].sum(), batches(), ValueError, "depend"),
        (lambda batch: model(batch[0]), batches(), TypeError, "scalar"),
        ("loss", batches(), TypeError, "callable"),
        (loss, 3, TypeError, "iterable"),
        (loss, iter([next(batches())]), ValueError, "run dry"),
        (lambda batch: 0 * loss(batch), batches(), ValueError, "zero"),
    ):
        with pytest.raises(error, match=message):
            opt.update(bad, data)
        assert torch.equal(opt.preconditioner.dense(), before)
        assert same(held, weights(model))
    steps(model, opt, 2)
    assert not same(held, weights(model))


def test_a_parameter_that_changed_its_shape_is_named_and_training_goes_on():
    model, opt = active()
    model[2] = nn.Linear(4, 2)  # not this one: the optimizer has the old
    bias = opt.param_groups[0]["params"][3]
    bias.data = torch.zeros(5)
    with pytest.raises(ValueError, match="shape"):
        opt.update(loss_of(model), batches())
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    opt.step()
    assert bool((bias != 0).all())


def test_observe_survives_bad_batches_and_a_gradient_of_zero():
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), rank=2)
    g = torch.Generator().manual_seed(0)

    def loss(x):
        return (x @ w).square().mean()

    notes = []
    for t in range(600):
        x = torch.randn(32, 2, generator=g, dtype=torch.float64)
        if t == 6:
            x = x * torch.nan
        opt.zero_grad()
        loss(x).backward()
        report = opt.observe(loss, x)
        notes += report.notes if report else ()
        if t != 6:
            opt.step()
        if t == 400:
            with torch.no_grad():
                w.zero_()
    assert float(w.detach().abs().max()) < 1e-30
    assert any("nothing was learnt" in note for note in notes)


def test_steps_with_gradients_that_are_not_finite_are_not_made_and_counted():
    w = nn.Parameter(torch.ones(3, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), rank=2)
    loss = lambda b: (b * w).square().mean()  # noqa: E731
    pool = [randn(40, 3, seed=i) for i in range(8)]
    assert opt.update(loss, pool).notes == ()
    for bad in (math.nan, math.inf):
        w.grad = torch.tensor([1.0, bad, 1.0], dtype=F64)
        opt.step()
    assert torch.equal(w.detach(), torch.ones(3, dtype=F64))
    assert opt.update(loss, pool).notes == ("2 steps were not made: the gradient held NaN or infinity",)
    assert opt.update(loss, pool).notes == ()
