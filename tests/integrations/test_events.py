"""What callbacks share, without any framework."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

import infhess
from infhess.integrations.events import Replaced, Rows, Watching, ours, showing_rates, used_rates


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
    assert used_rates(opt) == [opt.rate.value, 0.5 * opt.rate.value]
    shown = []

    def log():
        with showing_rates([opt, torch.optim.SGD([torch.zeros(1)], lr=3.0)]):
            shown.extend(group["lr"] for group in opt.param_groups)
            raise KeyError

    with pytest.raises(KeyError):
        log()
    assert shown == used_rates(opt)
    assert [group["lr"] for group in opt.param_groups] == [1.0, 0.5]
    assert used_rates(infhess.RateFree([nn.Parameter(torch.ones(1))])) == [0.0]  # nothing is found yet


def test_a_report_is_a_row_once():
    opt, rows = trained(), Rows()
    row = rows.new([opt])
    assert row["curvature/rate/low"] < row["curvature/rate"] < row["curvature/rate/high"]
    assert rows.new([opt]) == {}


class Named:
    def name(self, x):
        return x + 1


def test_methods_run_within_something_for_a_while():
    seen, owner, replaced = [], Named(), Replaced()

    @contextmanager
    def within(x):
        seen.append(x)
        yield
        seen.append("done")

    replaced.around(owner, ["name"], within)
    assert owner.name(2) == 3
    replaced.undo()
    assert owner.name(2) == 3
    assert seen == [2, "done"]
    assert not vars(owner)


def test_a_pass_that_is_dropped_was_not_watched():
    opt, watching = trained(0), Watching()
    watching.begin([opt])
    watching.drop()
    assert watching.micro_batches == 0
    assert torch.overrides._get_current_function_mode() is None
    assert ours([opt, None]) == [opt]
