"""Groups and rates: shared with the base, added later, in ratios that stay, put back after a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from contract import BASES, active, batches, flat, loss_of, net, steps, weights
from rounding import rounded, spread


def test_it_is_an_optimizer_and_shares_groups_and_state_with_its_base():
    _model, opt = active("adam")
    assert isinstance(opt, torch.optim.Optimizer)
    assert opt.param_groups is opt.base.param_groups
    assert opt.state is opt.base.state


@pytest.mark.parametrize("how", ["update", "observe"])
def test_groups_added_later_are_trained_at_their_own_rate_until_the_next_estimate(how):
    model = net()
    opt = infhess.Preconditioned(BASES["momentum"](model.parameters()), rank=3)
    extra = nn.Parameter(torch.ones(2))

    def loss(batch):
        return ((model(batch[0]) + extra - batch[1]) ** 2).mean()

    def train(n):
        for batch, _ in zip(batches(), range(n)):
            opt.zero_grad()
            loss(batch).backward()
            if how == "observe":
                opt.observe(loss, batch)
            opt.step()

    if how == "update":
        opt.update(loss, batches())
    train(10)
    opt.add_param_group({"params": [extra], "lr": 0.01})
    if how == "update":
        assert torch.equal(opt.preconditioner.dense(), torch.eye(opt.preconditioner.shape[0]))
        train(10)
        opt.update(loss, batches())
    train(150)
    assert not torch.equal(extra, torch.ones(2))
    assert float(loss(next(batches(7))).detach()) < 0.5
    assert opt.preconditioner.shape[0] == sum(p.numel() for p in model.parameters()) + 2


def test_ratios_between_the_rates_of_groups_stay():
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 1e-30}]
    opt = infhess.Preconditioned(torch.optim.SGD(groups), rank=3)
    opt.update(loss_of(model), batches())
    before = weights(model)
    steps(model, opt, 3)
    assert [torch.equal(a, b) for a, b in zip(before, weights(model))] == [False, False, True, True]


def test_rates_and_momentum_are_as_they_were_after_a_step():
    model, opt = active("momentum")
    before = {k: v for k, v in opt.param_groups[0].items() if k != "params"}
    steps(model, opt, 1)
    assert {k: v for k, v in opt.param_groups[0].items() if k != "params"} == before


def test_a_tensor_for_a_rate():
    def end(lr, draw=0):
        model = net()
        rounded(model.parameters(), torch.float32, draw)
        opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=lr, foreach=False), rank=2)
        opt.update(loss_of(model), batches())
        steps(model, opt, 3)
        return flat(model)

    spread(lambda draw: end(0.05, draw)).holds(end(torch.tensor(0.05)), steps=3)


def test_a_rate_of_zero_at_the_start_is_named():
    model = net()
    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.0), rank=2)
    with pytest.raises(ValueError, match="lr"):
        opt.update(loss_of(model), batches())


def test_weight_decay_counts_where_a_step_is_measured():
    w = nn.Parameter(torch.ones(5))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1, weight_decay=0.1), rank=5)
    D, g = torch.tensor([100.0, 10.0, 1.0, 1e-2, 1e-3]), torch.Generator().manual_seed(0)
    data = [1 + 0.1 * torch.rand(16, 5, generator=g) for _ in range(8)]

    def loss(x):
        return (x * D * w * w).mean(0).sum()

    opt.update(loss, data)
    for _ in range(60):
        opt.zero_grad()
        loss(data[0]).backward()
        opt.step()
    assert float(w.detach().abs().max()) < 0.1


@pytest.mark.parametrize("base", ["momentum", "adam"])
def test_parameters_without_gradient_are_left_alone(base):
    model, opt = active(base)
    loss_of(model)(next(batches())).backward()
    model[0].weight.grad = None
    before = weights(model)
    opt.step()
    assert [torch.equal(a, b) for a, b in zip(before, weights(model))] == [True, False, False, False]


def test_frozen_and_unused_parameters():
    model = net()
    unused = nn.Parameter(torch.ones(3))
    model[0].bias.requires_grad_(False)
    opt = infhess.Preconditioned(torch.optim.SGD([*model.parameters(), unused], lr=0.1), rank=3)
    opt.update(loss_of(model), batches())
    before = model[0].bias.clone()
    steps(model, opt, 3)
    assert torch.equal(before, model[0].bias)
    assert torch.equal(unused, torch.ones(3))


def test_parameters_may_be_replaced():
    opt = infhess.Preconditioned(BASES["adam"](net().parameters()), rank=3)
    opt.param_groups[0]["params"][3] = nn.Parameter(torch.ones(2))
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    opt.step()
    assert len(opt.state_dict()["state"]) == 4
