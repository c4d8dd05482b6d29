"""What was learnt stays: nets that fit their data are trained on, and things go wrong on the way."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import infhess
from soak_cases import NETS, OPTIMIZERS, loss_of, losses, made, train
from util import F64, randn

AVERAGING = ("kronecker", "diagonal")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("net", NETS)
def test_a_net_that_fits_its_data_still_does_after_twenty_times_the_steps(net, name, seed):
    found = losses(NETS[net], name, seed)
    assert min(found) < 0.1  # it was learnt
    assert found[-1] < max(30 * min(found), 0.02)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_no_step_takes_more_than_a_share_of_w_however_hard_its_batch(name):
    net = NETS["cancer"]
    model, opt = made(net, name)
    for _ in train(model, opt, net, 300):
        pass
    before = [p.detach().clone() for p in model.parameters()]
    fitted, size = loss_of(model, opt, net), math.sqrt(sum(float(p.square().sum()) for p in before))
    x, y = net.data()
    hard = replace(net, data=lambda: (10 * x, 1 - y), batch=len(x))
    for _ in train(model, opt, hard, 1):
        pass
    moved = math.sqrt(sum(float((p.detach() - b).square().sum()) for p, b in zip(model.parameters(), before)))
    assert 0 < moved < 0.16 * size
    for _ in train(model, opt, net, 60):
        pass
    assert loss_of(model, opt, net) < max(30 * fitted, 0.02)


@pytest.mark.parametrize("name", AVERAGING)
def test_the_average_stays_while_all_gradients_are_zero(name):
    net = NETS["wine"]
    model, opt = made(net, name)
    for _ in train(model, opt, net, 60):
        pass
    before = opt.state_dict()["state"]
    kept = [before[i]["averaged"].clone() for i in before]
    masked = replace(net, loss=lambda out, y: 0 * net.loss(out, y))
    with pytest.warns(UserWarning, match="exactly zero"):
        for _ in train(model, opt, masked, 200):
            pass
    after = opt.state_dict()["state"]
    assert all(torch.equal(after[i]["averaged"], k) for i, k in zip(after, kept))


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("how", ["zero", "None"])
def test_a_parameter_that_rests_keeps_the_average_of_the_steps_that_it_made(name, how):
    heads = nn.ModuleList([nn.Linear(3, 1, bias=False, dtype=F64) for _ in range(2)])
    x, y = randn(40, 3, seed=1), randn(40, 1, seed=2)
    opt = infhess.RateFree(heads.parameters(), scaling=name)
    iterates, weights = [], []
    for step in range(1, 81):
        rests = step % 4 != 0 and step > 4
        opt.zero_grad()
        with opt.watch():
            first, second = ((head(x) - y).square().mean() for head in heads)
            (first + (0 if rests else 1) * second).backward()
        if rests and how == "None":
            heads[1].weight.grad = None
        before = opt._rate_state.weight
        opt.step()
        own = opt.state[heads[1].weight]
        if opt._rate_state.weight > before and not rests:
            iterates.append(own["z"].clone())
            weights.append(opt._rate_state.weight - before)
    expected = sum(w * z for w, z in zip(weights, iterates)) / sum(weights)
    torch.testing.assert_close(own["averaged"], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", AVERAGING)
def test_iterates_that_a_schedule_has_stopped_do_not_take_over_the_average(name):
    net = NETS["diabetes"]
    model, opt = made(net, name)
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [150], 0.01)
    found = {}
    for step in train(model, opt, net, 600):
        found[step] = loss_of(model, opt, net) if step % 50 == 0 else math.inf
        if step > 1:
            schedule.step()
    assert max(v for step, v in found.items() if step > 150 and step % 50 == 0) < 1.5 * found[150]


@pytest.mark.parametrize("name", AVERAGING)
def test_where_the_targets_change_training_starts_over_and_says_so(name):
    net = NETS["diabetes"]
    model, opt = made(net, name)
    for _ in train(model, opt, net, 700):
        pass
    shifted, notes = replace(net, data=lambda: (net.data()[0], 10 * net.data()[1] + 30)), []
    fresh, other = made(shifted, name)
    fresh.load_state_dict(model.state_dict())
    for trained, optimizer in ((model, opt), (fresh, other)):
        for _ in train(trained, optimizer, shifted, 500):
            notes += optimizer.report.notes if optimizer is opt else ()
    assert loss_of(model, opt, shifted) < 3 * loss_of(fresh, other, shifted)
    assert any("started over" in note for note in notes)


def test_training_that_starts_over_goes_on_as_a_new_optimizer_of_the_averaged_weights():
    net = NETS["diabetes"]
    model, opt = made(net, "kronecker")
    for _ in train(model, opt, net, 60):
        pass
    with opt.averaged():
        expected = [p.detach().clone() for p in model.parameters()]
    opt._start_over()
    other = copy.deepcopy(model)
    fresh = infhess.RateFree(other.parameters())
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), expected))
    for trained, optimizer in ((model, opt), (other, fresh)):
        for _ in train(trained, optimizer, net, 20):
            pass
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), other.parameters()))
