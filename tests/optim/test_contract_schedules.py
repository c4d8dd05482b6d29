"""Schedules reach the step."""

from __future__ import annotations

import warnings

import pytest
import torch

import infhess
from contract import BASES, batches, loss_of, net, same, steps, weights

SCHEDULES = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 0.5**t),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("on", ["wrapper", "base"])
def test_schedules_reach_the_step(schedule, on):
    model = net()
    base = BASES["momentum"](model.parameters())
    opt = infhess.Preconditioned(base, rank=2)
    scheduler = SCHEDULES[schedule](opt if on == "wrapper" else base)
    opt.update(loss_of(model), batches())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            steps(model, opt, 1)
            scheduler.step(1.0) if schedule == "plateau" else scheduler.step()
    assert opt.param_groups[0]["lr"] == base.param_groups[0]["lr"] != 0.05


def test_a_schedule_with_a_peak_may_be_made_before_the_wrapper():
    ends = []
    for first in ("wrapper", "schedule"):
        model = net()
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = infhess.Preconditioned(base, rank=3) if first == "wrapper" else None
        scheduler = torch.optim.lr_scheduler.OneCycleLR(base, max_lr=0.1, total_steps=30)
        opt = opt or infhess.Preconditioned(base, rank=3)
        opt.update(loss_of(model), batches())
        for i in range(10):
            steps(model, opt, 1, seed=i)
            scheduler.step()
        ends.append(weights(model))
    assert same(*ends)
