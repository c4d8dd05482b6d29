"""At the noise floor a refresh of P² does not raise the loss of the averaged iterate."""

from __future__ import annotations

import math
from statistics import mean
from types import SimpleNamespace

import pytest
import torch

import infhess
from infhess.cli.demo import Run, convex_problem, value
from infhess.cli.shuffled import seeded
from infhess.optim.controllers.controller_state import ControllerState
from infhess.optim.controllers.noise import noise_limit
from infhess.preconditioners.scaling import Block, Scaling
from util import F64, randn

REFRESHED, END = 9152, 12_000  # data points of the demo at which P² is built for the third time, and a third more


@pytest.mark.long
def test_no_refresh_raises_the_averaged_loss_of_the_demo_beyond_noise():
    """The largest loss of the averaged iterate after the last refresh, beside what it was then; both less the optimum's."""
    problem, rises = convex_problem(), []
    best = value(problem, problem.solved(), problem.data)
    for seed in range(20):
        after = [loss - best for loss in losses_since(REFRESHED, problem, seed)]
        rises.append(max(after) / after[0])
    # Here 1.04 and 1.56. With the step of the new P² as long as curvature allows for: 1.58 and 7.
    assert math.exp(mean(map(math.log, rises))) < 1.1
    assert max(rises) < 2


def losses_since(mark, problem, seed):
    """Of the averaged iterate, whenever 3 % more points were read."""
    with seeded(seed):
        run = Run(problem, lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=1.0)), seed)
        while run.points < END:
            run.step()
            if run.points >= mark:
                yield value(problem, run.averaged(), problem.data)
                mark = 1.03 * run.points
    assert run.optimizer._state.built_at == REFRESHED


@pytest.mark.parametrize("split", [True, False])
def test_the_limit_keeps_the_noise_of_a_step(split):
    """η gᵀP²g is the same before and after: of what slices differ in, or of the gradient where there are no slices."""
    w, batch = torch.nn.Parameter(randn(3, seed=1)), randn(16, 3, seed=2)
    source = infhess.Hessian(lambda b: 0.5 * (w - b).square().sum(1).mean(), [w], [batch], split=split)
    old, new = (Scaling([Block(torch.eye(3, dtype=F64)[:, :1], gain, gain)], 4.0) for gain in (const(0.0), const(-8.0)))
    state = ControllerState(step=0.5, factor=4.0, slope=-0.3, slope_squares=1.0)
    context = SimpleNamespace(state=state, batch=batch, source=source, points=16, scaling=old)
    limit = noise_limit(context, source.local(batch), new)
    G = w.detach()[:, None] - torch.stack([b.mean(0) for b in batch.split(2)], 1)
    G = G - G.mean(1, keepdim=True) if split else G.mean(1, keepdim=True)
    weights = torch.tensor([9.0, 1.0, 1.0], dtype=F64)[:, None]
    assert limit * float((weights * G.square()).sum()) == pytest.approx(2.0 * float(G.square().sum()))
    state.slope = -0.4
    assert noise_limit(context, source.local(batch), new) == math.inf


def const(value):
    return torch.full((1,), value, dtype=F64)
