"""What torch does around every step: hooks and the profiler's range, also where a step does without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import infhess


def trained(kind):
    """An optimizer that has made a step, and a function that makes another."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    batch = torch.randn(16, 3), torch.randn(16, 1)
    loss = lambda b: (model(b[0]) - b[1]).square().mean()  # noqa: E731
    wrapped = kind == "preconditioned"
    params = model.parameters()
    opt = infhess.Preconditioned(torch.optim.SGD(params, lr=0.1)) if wrapped else infhess.RateFree(params)

    def step():
        opt.zero_grad()
        loss(batch).backward()
        opt.observe(loss, batch)
        opt.step()

    step()
    return opt, step


@pytest.mark.parametrize("kind", ["preconditioned", "rate free"])
def test_hooks_run_once_a_step(kind):
    opt, step = trained(kind)
    calls = []
    opt.register_step_pre_hook(lambda *_: calls.append("before"))
    opt.register_step_post_hook(lambda *_: calls.append("after"))
    everywhere = register_optimizer_step_post_hook(lambda o, *_: calls.append(type(o)))
    try:
        step()
    finally:
        everywhere.remove()
    assert calls == ["before", "after", type(opt)]


@pytest.mark.parametrize("kind", ["preconditioned", "rate free"])
def test_a_profiler_sees_the_step_and_changes_nothing(kind):
    opt, step = trained(kind)
    other, unseen = trained(kind)
    with torch.autograd.profiler.profile() as profile:
        step()
    unseen()
    names = [event.name for event in profile.function_events]
    assert names.count(f"Optimizer.step#{type(opt).__name__}.step") == 1
    for p, q in zip(opt.param_groups[0]["params"], other.param_groups[0]["params"]):
        assert torch.equal(p, q)
