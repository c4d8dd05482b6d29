"""Any scheduler of torch, from any learning rate: a measured step follows the shape of a schedule, not its scale."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as s
from torch.optim.swa_utils import SWALR

import infhess

F64 = torch.float64
SCHEDULES = {
    "LambdaLR": lambda o: s.LambdaLR(o, lambda t: 0.98**t),
    "MultiplicativeLR": lambda o: s.MultiplicativeLR(o, lambda t: 0.98),
    "StepLR": lambda o: s.StepLR(o, 20),
    "MultiStepLR": lambda o: s.MultiStepLR(o, [10, 30]),
    "ConstantLR": lambda o: s.ConstantLR(o, total_iters=30),
    "LinearLR": lambda o: s.LinearLR(o, total_iters=30),
    "ExponentialLR": lambda o: s.ExponentialLR(o, 0.95),
    "PolynomialLR": lambda o: s.PolynomialLR(o, 80),
    "CosineAnnealingLR": lambda o: s.CosineAnnealingLR(o, 80),
    "ChainedScheduler": lambda o: s.ChainedScheduler([s.ConstantLR(o), s.ExponentialLR(o, 0.95)]),
    "SequentialLR": lambda o: s.SequentialLR(o, [s.LinearLR(o), s.ExponentialLR(o, 0.95)], [10]),
    "SequentialLR to OneCycleLR": lambda o: s.SequentialLR(
        o, [s.LinearLR(o), s.OneCycleLR(o, 0.1, total_steps=90)], [10]
    ),
    "CyclicLR": lambda o: s.CyclicLR(o, 1e-3, 0.1, step_size_up=10),
    "CosineAnnealingWarmRestarts": lambda o: s.CosineAnnealingWarmRestarts(o, 20),
    "OneCycleLR": lambda o: s.OneCycleLR(o, 0.1, total_steps=90),
    "ReduceLROnPlateau": lambda o: s.ReduceLROnPlateau(o, patience=5, eps=0.0),
}
RATES = [1.0, 0.1, 1e-3, 1e-6]
each_schedule = pytest.mark.parametrize("name", SCHEDULES)


class Run:
    """Self-driving sgd on least squares with noise, so that the length of steps is seen at the end."""

    def __init__(self, lr, schedule=None):
        g = torch.Generator().manual_seed(0)
        self.X = torch.randn(256, 6, generator=g, dtype=F64) * torch.logspace(0, -1, 6, dtype=F64)
        self.y = self.X.sum(1) + torch.randn(256, generator=g, dtype=F64)
        self.w = nn.Parameter(torch.zeros(6, dtype=F64))
        self.opt = infhess.Preconditioned(torch.optim.SGD([self.w], lr=lr))
        self.schedule, self.t = schedule and schedule(self.opt), 0

    def loss(self, batch):
        return (batch[0] @ self.w - batch[1]).square().mean()

    def steps(self, n):
        for _ in range(n):
            part = torch.randint(256, (32,), generator=torch.Generator().manual_seed(self.t))
            batch = (self.X[part], self.y[part])
            self.opt.zero_grad()
            self.loss(batch).backward()
            self.opt.observe(self.loss, batch)
            self.opt.step()
            self.t += 1
            if isinstance(self.schedule, s.ReduceLROnPlateau):
                self.schedule.step(1.0)
            elif self.schedule:
                self.schedule.step()
        return self.w.detach().clone()


def same(found):
    for w in found[1:]:
        torch.testing.assert_close(w, found[0], rtol=1e-9, atol=1e-12)


@each_schedule
def test_the_rate_given_does_not_matter_from_the_start(name):
    found = [Run(lr, SCHEDULES[name]).steps(60) for lr in RATES]
    same(found)
    assert not torch.allclose(found[0], Run(1.0).steps(60), rtol=1e-6)  # the schedule does


@each_schedule
def test_nor_for_a_schedule_that_is_made_later(name):
    found = []
    for lr in RATES:
        run = Run(lr)
        run.steps(15)
        run.schedule = SCHEDULES[name](run.opt)
        found.append(run.steps(45))
    same(found)


@each_schedule
def test_nor_for_one_that_is_loaded(name):
    run = Run(1e-3, SCHEDULES[name])
    run.steps(20)
    saved = copy.deepcopy((run.opt.state_dict(), run.schedule.state_dict(), run.w.detach()))
    expected = run.steps(40)
    for lr in RATES:
        again = Run(lr, SCHEDULES[name])
        again.opt.load_state_dict(copy.deepcopy(saved[0]))  # torch shares the tensors
        again.schedule.load_state_dict(copy.deepcopy(saved[1]))
        again.w.data.copy_(saved[2])
        again.t = 20
        same([expected, again.steps(40)])


def test_an_average_of_weights_anneals_to_a_rate_of_its_own_and_is_safe_from_any():
    X, y = Run(1.0).X, Run(1.0).y
    best = float((X @ torch.linalg.lstsq(X, y[:, None]).solution[:, 0] - y).square().mean())
    for lr in RATES:
        run = Run(lr, lambda o: SWALR(o, 0.05))
        run.steps(60)
        assert float(run.loss((run.X, run.y)).detach()) < 2 * best, lr


def test_a_bare_checkpoint_brings_its_own_rate():
    bare, w = torch.optim.SGD([nn.Parameter(torch.zeros(6, dtype=F64))], lr=7.0), []
    for lr in RATES:
        run = Run(lr)
        run.opt.load_state_dict(bare.state_dict())
        w.append(run.steps(30))
    same([Run(1.0).steps(30), *w])


@pytest.mark.parametrize("factor", [0.25, 1.0, 1.5])
def test_a_rate_that_is_set_by_hand_multiplies_the_step(factor):
    run = Run(0.01)
    run.steps(40)
    before = run.w.detach().clone()
    twin = copy.deepcopy(run)
    plain = run.steps(1) - before
    for group in twin.opt.param_groups:
        group["lr"] *= factor
    moved = twin.steps(1) - before
    torch.testing.assert_close(moved, factor * plain, rtol=1e-9, atol=1e-15)
