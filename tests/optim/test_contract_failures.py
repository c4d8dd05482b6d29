"""Updates that fail and batches that are bad leave everything as it was."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import infhess
from contract import BASES, active, batches, loss_of, net, same, steps, weights
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


@pytest.mark.parametrize(
    ("bad", "options", "error", "message"),
    [
        (None, {}, TypeError, "loss: expected a callable"),
        ("loss", {"products": "x"}, ValueError, "products: expected"),
        ("loss", {"generator": 3}, TypeError, "generator: expected"),
        (lambda batch: batch[0], {}, TypeError, "expected a scalar tensor"),
    ],
)
def test_a_refused_observe_leaves_the_base_as_it_was(bad, options, error, message):
    ends = []
    for observes in (False, True):
        model = net()
        opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1))
        loss, stream = loss_of(model), batches()
        for batch in (next(stream) for _ in range(3)):
            opt.zero_grad()
            loss(batch).backward()
            if observes:
                with pytest.raises(error, match=message):
                    opt.observe(loss if bad == "loss" else bad, batch, **options)
            opt.step()
        ends.append(weights(model))
    assert same(*ends)


def test_rate_free_refuses_at_any_step():
    model = net()
    opt, batch = infhess.RateFree(model.parameters()), next(batches())
    for t in range(8):  # a probe is due at some of them
        opt.zero_grad()
        loss_of(model)(batch).backward()
        with pytest.raises(ValueError, match="products: expected"):
            opt.observe(loss_of(model), batch, products="x")
        opt.observe(loss_of(model), batch)
        opt.step()
        assert opt._rate_state.steps == t


@pytest.mark.parametrize("make", [infhess.RateFree, lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=0.1))])
@pytest.mark.parametrize(("given", "error"), [(None, TypeError), ({}, ValueError), ({"state": {}}, ValueError)])
def test_what_is_no_checkpoint_is_named(make, given, error):
    opt = make(net().parameters())
    with pytest.raises(error, match=r"expected what state_dict\(\) returns"):
        opt.load_state_dict(given)


@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("how", ["update", "observe", "watch", "closure"])
def test_parameters_of_two_dtypes(base, how):
    narrow = nn.Parameter(torch.ones(3))
    wide = nn.Parameter(torch.ones(2, dtype=F64))
    opt = infhess.Preconditioned(BASES[base]([narrow, wide]), rank=2)
    target = randn(400, 5, seed=2) * 0.1 + 3

    def loss(b):
        return (narrow - b[:, :3]).square().mean() + 9 * (wide - b[:, 3:]).square().mean()

    def closure():
        opt.zero_grad()
        value = loss(batch)
        value.backward()
        return value

    for t in range(120):
        batch = target[50 * (t % 8) :][:50]
        if how == "update" and t == 0:
            opt.update(loss, target.split(50))
        if how == "closure":
            opt.step(closure)
            continue
        with opt.watch() if how == "watch" else nullcontext():
            closure()
        if how == "observe":
            opt.observe(loss, batch)
        opt.step()
    with torch.no_grad():
        end = float(loss(target))
        for p in (narrow, wide):
            p.fill_(1.0)
        assert end < 0.5 * float(loss(target))


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
