"""What training loops do around a step: closures, hooks, scaling and clipping, averaging, compilation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel

import infhess
from contract import BASES, active, batches, loss_of, net, same, steps, weights


def test_a_closure_runs_once_with_gradients_on_and_its_loss_is_returned():
    model, opt = active("adam")
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        opt.zero_grad()
        value = loss_of(model)(next(batches()))
        value.backward()
        return value

    before = weights(model)
    with torch.no_grad():
        value = opt.step(closure)
    assert calls == [True]
    assert value.item() > 0
    assert not same(before, weights(model))


@pytest.mark.parametrize("state", ["inactive", "active"])
def test_hooks_fire_once_and_with_the_wrapper(state):
    model = net()
    opt = infhess.Preconditioned(BASES["sgd"](model.parameters()), rank=2)
    if state == "active":
        opt.update(loss_of(model), batches())
    seen = []
    handles = [
        register_optimizer_step_pre_hook(lambda o, *_: seen.append(("global pre", o))),
        register_optimizer_step_post_hook(lambda o, *_: seen.append(("global post", o))),
        opt.register_step_pre_hook(lambda o, *_: seen.append(("pre", o))),
        opt.register_step_post_hook(lambda o, *_: seen.append(("post", o))),
    ]
    steps(model, opt, 1)
    for handle in handles:
        handle.remove()
    assert sorted(name for name, _ in seen) == ["global post", "global pre", "post", "pre"]
    assert all(o is opt for _, o in seen)


def test_gradient_scaler():
    """The scale is a power of two: bit for bit."""
    ends = []
    for scale in (False, True):
        model, opt = active()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scale)
        stream = batches(3)
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(loss_of(model)(next(stream))).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
        ends.append(weights(model))
    assert same(*ends)


def test_averaging_by_torch_itself():
    """AveragedModel, a deep copy, is untouched by our steps and holds the mean of the weights that they led to."""
    model, opt = active()
    average, seen = AveragedModel(model), []
    for _ in range(4):
        steps(model, opt, 1)
        average.update_parameters(model)
        seen.append(weights(model))
    assert not same(seen[0], seen[3])
    for mean, *each in zip(weights(average.module), *seen):
        torch.testing.assert_close(mean, torch.stack(each).mean(0))
