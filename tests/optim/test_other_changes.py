"""Weights and dtypes that change between steps, and passes that are not seen: what is said, and what is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import infhess
from watch_cases import F64, WAYS, batch, net, train, weights

CHANGED = "weights were changed since the last step"


def loss_of(model):
    return lambda b: F.cross_entropy(model(b[0]), b[1])


def notes(model, opt, after=lambda: None, way="watch", steps=100, first=0):
    """The notes of all reports in these steps."""
    found = []
    for t in range(first, first + steps):
        before = opt.report
        train(opt, loss_of(model), [batch("mlp", t)], way)
        after()
        if opt.report is not before:
            found += opt.report.notes
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scaling", ["kronecker", "diagonal"])
def test_a_clamp_after_the_step_is_noted(scaling, way):
    model = net("mlp")
    opt = infhess.RateFree(model.parameters(), scaling=scaling)
    clamp = lambda: [p.data.clamp_(-0.05, 0.05) for p in model.parameters()]  # noqa: E731
    assert any(CHANGED in note for note in notes(model, opt, clamp, way))


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize("scaling", ["kronecker", "diagonal"])
def test_what_the_optimizer_does_itself_is_not(scaling, dtype):
    model = net("mlp").to(dtype)
    opt = infhess.RateFree(model.parameters(), scaling=scaling)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 1.0, total_steps=400)  # changes β₁ at each step

    def evaluate():
        schedule.step()
        with opt.averaged():
            pass
        opt.eval()
        opt.train()

    loss, found = lambda b: F.cross_entropy(model(b[0].to(dtype)).float(), b[1]), []
    for t in range(200):
        before = opt.report
        train(opt, loss, [batch("mlp", t)], "watch")
        evaluate()
        if t == 70:
            opt.finish()
        found += opt.report.notes if opt.report is not before else ()
    assert not any(CHANGED in note for note in found)


def test_after_resuming_there_is_nothing_to_note():
    model = net("mlp")
    opt = infhess.RateFree(model.parameters())
    notes(model, opt, steps=20)
    with opt.averaged():
        kept = model.state_dict()
        kept = {name: value.clone() for name, value in kept.items()}
    state, there = opt.state_dict(), weights(model)
    model.load_state_dict(kept)
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(state)
    again.resume()
    assert torch.equal(weights(model), there)
    assert not any(CHANGED in note for note in notes(model, again, steps=70))


@pytest.mark.parametrize(
    "make", [lambda p: infhess.Preconditioned(torch.optim.Adam(p, lr=1e-3)), infhess.RateFree], ids=["adam", "rotated"]
)
def test_another_dtype_than_that_of_the_state_is_explained(make):
    model = net("mlp").float()
    opt = make(model.parameters())
    x, y = batch("mlp", 0)

    def step():
        opt.zero_grad()
        with opt.watch():
            F.cross_entropy(model(x.to(model[0].weight.dtype)), y).backward()
        opt.step()

    for _ in range(3):
        step()
    model.double()
    with pytest.raises(RuntimeError, match=r"parameters have become torch\.float64 .* in torch\.float32"):
        step()


def test_another_error_of_a_step_is_left_as_it_is():
    model = net("mlp")
    opt = infhess.Preconditioned(torch.optim.Adam(model.parameters(), lr=1e-3))
    train(opt, loss_of(model), [batch("mlp", 0)], "watch")
    opt.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("of a hook")))
    with pytest.raises(RuntimeError, match="of a hook"):
        opt.step()


@pytest.mark.parametrize("scaling", ["kronecker", "diagonal"])
@pytest.mark.parametrize("first", ["finite", "NaN"])
def test_a_pass_that_is_not_seen_after_one_that_was_is_no_error(first, scaling):
    """The first step of the rotated scaling only learns its bases; the second one has no rate yet."""
    model = net("mlp")
    opt = infhess.RateFree(model.parameters(), scaling=scaling)
    factor = 1.0 if first == "finite" else torch.nan
    with opt.watch():
        (factor * loss_of(model)(batch("mlp", 0))).backward()
    opt.step()
    opt.zero_grad()
    loss_of(model)(batch("mlp", 1)).backward()
    opt.step()
    notes(model, opt, steps=5)
    assert opt.rate.value > 0


def test_where_no_pass_was_ever_seen_it_is_an_error():
    model = nn.Linear(6, 3).to(F64)
    opt = infhess.RateFree(model.parameters())
    loss_of(model)(batch("mlp", 0)).backward()
    with pytest.raises(RuntimeError, match="no training pass was seen, so there is no rate"):
        opt.step()
