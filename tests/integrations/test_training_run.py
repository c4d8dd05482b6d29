"""What callbacks share, without any framework."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from infhess.integrations.training_run import Run, used_rates


def trained(steps=4):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    opt = infhess.RateFree([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}])
    x = torch.randn(32, 3)
    for _ in range(steps):
        opt.zero_grad()
        with opt.watch():
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        opt.step()
    return opt


def test_the_learning_rate_in_use_is_shown_for_a_while():
    opt = trained()
    run = Run(lambda: [opt, torch.optim.SGD([torch.zeros(1)], lr=3.0)])
    assert used_rates(opt) == [opt.rate.value, 0.5 * opt.rate.value]
    shown = []

    @run.showing_rates()  # as a decorator: each call anew
    def log():
        shown.append([group["lr"] for group in opt.param_groups])
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            log()
        assert [group["lr"] for group in opt.param_groups] == [1.0, 0.5]
    assert shown == 2 * [used_rates(opt)]
    assert used_rates(infhess.RateFree([nn.Parameter(torch.ones(1))])) == [0.0]  # nothing is found yet


def test_a_report_is_a_row_once():
    opt = trained()
    run = Run(lambda: [opt])
    row = run.probes()
    assert row["curvature/rate/low"] < row["curvature/rate"] < row["curvature/rate/high"]
    assert run.probes() == {}


def test_a_pass_that_is_dropped_was_not_watched():
    opt = trained(0)
    run = Run(lambda: [opt, None])
    assert run.ours == [opt]
    run.watch()
    run.drop()
    run.watched()
    assert run.micro_batches == 0
    assert torch.overrides._get_current_function_mode() is None


def test_statistics_of_training_are_at_hand_while_others_stand_in_the_model():
    """Also of a layer that is the model itself."""
    norm = nn.BatchNorm1d(3)
    opt = infhess.RateFree(norm.parameters(), scaling="diagonal")
    run = Run(lambda: [opt], model=norm, loss=lambda x: norm(x).square().mean())
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0)) + 5
    for _ in range(3):
        run.train(x)
        run.watch()
        norm(x).sum().backward()
        run.watched()
        opt.step()
    before = norm.running_mean.clone()
    with run.averaged():
        assert torch.equal(run.running["running_mean"], before)
        torch.testing.assert_close(norm.running_mean, x.mean(0))  # means over the batches, not moving ones
    assert torch.equal(norm.running_mean, before)
    run.eval()
    run.eval()
    assert torch.equal(run.running["running_mean"], before)
    run.train(x)
    assert torch.equal(norm.running_mean, before)
    assert not run.running
