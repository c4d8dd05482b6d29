"""Schedules reach the step: under a schedule a move is the move without it, times what torch's schedule makes of the rate."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_schedules

import infhess
from contract import BASES, batches, loss_of, net, same, steps, weights
from quadratics import B, N, b, quadratic
from util import close, randn

LR, STEPS, GRADIENT = 0.1, 8, 1e-3 * randn(N, seed=8)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=LR),
    "momentum": lambda p: torch.optim.SGD(p, lr=LR, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=LR),
}


def one_cycle(optimizer):
    return torch_schedules.OneCycleLR(optimizer, max_lr=LR, total_steps=20, cycle_momentum=False)


def warm_up_then_decay(optimizer):
    parts = [torch_schedules.LinearLR(optimizer, 0.1, total_iters=4), torch_schedules.ExponentialLR(optimizer, 0.5)]
    return torch_schedules.SequentialLR(optimizer, parts, milestones=[4])


def both_at_once(optimizer):
    parts = [torch_schedules.ConstantLR(optimizer, 0.5, total_iters=3), torch_schedules.ExponentialLR(optimizer, 0.9)]
    return torch_schedules.ChainedScheduler(parts)


SCHEDULES = {
    "lambda": lambda o: torch_schedules.LambdaLR(o, lambda t: 0.5**t),
    "step": lambda o: torch_schedules.StepLR(o, 2, 0.1),
    "one-cycle": one_cycle,
    "cosine": lambda o: torch_schedules.CosineAnnealingLR(o, 10),
    "plateau": lambda o: torch_schedules.ReduceLROnPlateau(o, patience=0),
    "sequential": warm_up_then_decay,
    "chained": both_at_once,
}


def moves(opt, w, scheduler=None):
    """What each of some steps from 0 adds to w, with one and the same gradient; it is short, so that no step is cut."""
    found = []
    w.data.zero_()
    for _ in range(STEPS):
        before, w.grad = w.detach().clone(), GRADIENT.clone()
        opt.step()
        found.append(w.detach() - before)
        if isinstance(scheduler, torch_schedules.ReduceLROnPlateau):
            scheduler.step(1.0)
        elif scheduler:
            scheduler.step()
    return torch.stack(found)


def rates(schedule):
    """lr/lr₀ of each step, by torch alone."""
    w = nn.Parameter(torch.zeros(N, dtype=torch.float64))
    opt = torch.optim.SGD([w], lr=LR)
    return moves(opt, w, SCHEDULES[schedule](opt))[:, 0] / (-LR * GRADIENT[0])


def learnt(base, how="update"):
    """w, and a Preconditioned of it that has seen curvature, after steps on gradients far longer than those of `moves`."""
    w, loss, stream = quadratic(B, b)
    opt, source = infhess.Preconditioned(OPTIMIZERS[base]([w]), rank=5), stream()
    for batch, _ in zip(source, range(3)):
        opt.zero_grad()
        loss(batch).backward()
        if how == "observe":
            opt.observe(loss, batch)
        opt.step()
    if how == "update":
        opt.update(loss, source)
    return w, opt


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("on", ["wrapper", "base"])
@pytest.mark.parametrize(
    ("base", "how"), [("sgd", "update"), ("sgd", "observe"), ("momentum", "update"), ("adam", "update")]
)
def test_a_move_is_that_without_a_schedule_times_its_factor(schedule, on, base, how):
    w, opt = learnt(base, how)
    usual = moves(opt, w)
    w, opt = learnt(base, how)
    found = moves(opt, w, SCHEDULES[schedule](opt if on == "wrapper" else opt.base))
    factors = rates(schedule)
    assert float((factors - 1).abs().max()) > 0.3
    close(found, factors[:, None] * usual, 1e-9)


@pytest.mark.parametrize("base", OPTIMIZERS)
def test_before_the_first_estimate_a_schedule_is_the_bases_own(base):
    ends = []
    for wrapped in (False, True):
        w = nn.Parameter(torch.ones(N, dtype=torch.float64))
        opt = OPTIMIZERS[base]([w])
        opt = infhess.Preconditioned(opt, rank=2) if wrapped else opt
        moves(opt, w, SCHEDULES["lambda"](opt))
        ends.append(w.detach())
    assert torch.equal(*ends)


@pytest.mark.parametrize("factor", [0.1, 0.5])
def test_in_nets_too_the_first_step_is_scaled_by_the_schedule(factor):
    found = []
    for scale in (1.0, factor):
        model = net()
        opt = infhess.Preconditioned(BASES["momentum"](model.parameters()), blocks="layer", rank=2)
        torch_schedules.LambdaLR(opt, lambda _, scale=scale: scale)
        before, loss, batch = weights(model), loss_of(model), next(batches())
        loss(batch).backward()
        opt.observe(loss, batch)
        opt.step()
        found.append(torch.cat([(a - c).reshape(-1) for a, c in zip(weights(model), before)]))
    close(found[1], factor * found[0], 2e-3)  # in single precision


def test_a_schedule_with_a_peak_may_be_made_before_the_wrapper():
    ends = []
    for first in ("wrapper", "schedule"):
        model = net()
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = infhess.Preconditioned(base, rank=3) if first == "wrapper" else None
        scheduler = torch_schedules.OneCycleLR(base, max_lr=0.1, total_steps=30)
        opt = opt or infhess.Preconditioned(base, rank=3)
        opt.update(loss_of(model), batches())
        for i in range(10):
            steps(model, opt, 1, seed=i)
            scheduler.step()
        ends.append(weights(model))
    assert same(*ends)


def test_momentum_may_cycle_with_the_rate():
    """OneCycleLR moves momentum too: the base's rate goes with lr (1 − β) as both are at this step."""
    w, opt = learnt("momentum")
    scheduler = torch_schedules.OneCycleLR(opt, max_lr=LR, total_steps=20)
    expected, used, base_step = [], [], opt.base.step
    opt.base.step = lambda: (used.append(opt.param_groups[0]["lr"]), base_step())
    for _ in range(6):
        expected.append(opt.param_groups[0]["lr"] * (1 - opt.param_groups[0]["momentum"]))
        w.grad = GRADIENT.clone()
        opt.step()
        scheduler.step()
    close(torch.tensor(used) / used[0], torch.tensor(expected) / expected[0], 1e-6)
    assert expected[-1] > 2 * expected[0]
