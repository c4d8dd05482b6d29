"""A checkpoint taken while observe gathers batches for an estimate: the run goes on from it bit for bit."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import infhess
from util import F64, randn

STEPS = 24
WRAPPED = {
    "tensor": lambda x, y: torch.cat([x, y[:, None]], 1),
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dict": lambda x, y: {"x": x, "more": {"y": y}, "name": "a batch", "scale": 1.0},
}


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor


def parts(batch):
    if isinstance(batch, torch.Tensor):
        return batch[:, :-1], batch[:, -1]
    if isinstance(batch, dict):
        return batch["x"], batch["more"]["y"]
    return (batch.x, batch.y) if isinstance(batch, Batch) else batch


class Run:
    """Logistic regression on views of the same data, with an optimizer of its own."""

    def __init__(self, wrap, base="SGD"):
        self.w = nn.Parameter(torch.zeros(6, dtype=F64))
        bases = {"SGD": {"lr": 0.1, "momentum": 0.0}, "Adam": {"lr": 0.1}}
        self.opt = infhess.Preconditioned(getattr(torch.optim, base)([self.w], **bases[base]))
        x = randn(STEPS * 24, 6) * torch.logspace(1, -1, 6, dtype=F64)
        y = torch.sign(x[:, 0] + randn(len(x), seed=1))
        self.batches = [wrap(*b) for b in zip(x.split(24), y.split(24))]

    def loss(self, batch):
        x, y = parts(batch)
        return nn.functional.softplus(-y * (x @ self.w)).mean() + 1e-3 * self.w.square().sum()

    def go(self, first, last):
        found = []
        for batch in self.batches[first:last]:
            self.opt.zero_grad()
            self.loss(batch).backward()
            self.opt.observe(self.loss, batch)
            self.opt.step()
            found.append(self.w.detach().clone())
        return found


def saved_and_loaded(state):
    """Through a file, as torch reads it by default."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True), len(file.getvalue())


@pytest.mark.parametrize("base", ["SGD", "Adam"])
@pytest.mark.parametrize("kind", WRAPPED)
def test_a_run_resumed_at_any_step_goes_on_bit_for_bit(kind, base):
    run, states, pooled = Run(WRAPPED[kind], base), [], []
    expected = []
    for t in range(STEPS):
        states.append((run.w.detach().clone(), saved_and_loaded(run.opt.state_dict())[0]))
        pooled.append(bool(run.opt._pool))
        expected += run.go(t, t + 1)
    assert sum(pooled) > 3
    for t, (w, state) in enumerate(states):
        again = Run(WRAPPED[kind], base)
        again.w.data.copy_(w)
        again.opt.load_state_dict(state)
        assert all(torch.equal(a, b) for a, b in zip(again.go(t, STEPS), expected[t:], strict=True)), t


def test_a_checkpoint_holds_the_points_of_its_pool_and_not_the_data_that_they_are_views_of():
    run = Run(WRAPPED["tuple"])
    empty = saved_and_loaded(run.opt.state_dict())[1]
    run.go(0, 2)
    assert len(run.opt.state_dict()["curvature_pool"]) == 2
    assert saved_and_loaded(run.opt.state_dict())[1] - empty < 24 * 7 * 8 * 2 + 6000


def test_a_checkpoint_is_one_of_its_moment():
    """What is observed later, and a buffer that is filled again, is no part of it."""
    run = Run(WRAPPED["list"])
    run.go(0, 2)
    state = run.opt.state_dict()
    before = copy.deepcopy(state["curvature_pool"])
    run.batches[0][0].zero_()
    run.go(2, 8)
    assert len(state["curvature_pool"]) == 2
    assert torch.equal(state["curvature_pool"][0][0], before[0][0])


def test_older_checkpoints_have_no_pool():
    run = Run(WRAPPED["tuple"])
    run.go(0, 3)
    state = run.opt.state_dict()
    del state["curvature_pool"]
    again = Run(WRAPPED["tuple"])
    again.go(0, 2)
    again.opt.load_state_dict(state)
    assert again.opt._pool == []
    again.go(3, STEPS)


def test_batches_that_a_file_cannot_hold_are_left_out():
    run = Run(Batch)
    run.go(0, 3)
    assert run.opt._pool
    state = saved_and_loaded(run.opt.state_dict())[0]
    assert "curvature_pool" not in state
    again = Run(Batch)
    again.opt.load_state_dict(state)
    assert all(torch.isfinite(w).all() for w in again.go(3, STEPS))


def test_a_checkpoint_that_does_not_fit_leaves_the_pool_alone():
    run = Run(WRAPPED["tuple"])
    run.go(0, 3)
    state = run.opt.state_dict()
    del state["param_groups"]
    other = Run(WRAPPED["tuple"])
    other.go(0, 1)
    with pytest.raises(ValueError, match="state_dict"):
        other.opt.load_state_dict(state)
    assert len(other.opt._pool) == 1
