"""What products leave behind: nothing, in no buffer, gradient, hook or random state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from infhess import Hessian, infer, spectrum
from nets import NETS, build
from small_data import loader, problem
from util import F64, close


@pytest.mark.parametrize("name", NETS)
def test_nothing_is_left_behind(name):
    model, loss, batch = build(name)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    source = Hessian(loss, model.parameters(), [batch])
    for call in (source.gradient, lambda: source.matvec(torch.ones(source.size)), lambda: infer(source, 3)):
        call()
    difference = Hessian(loss, model.parameters(), [batch], products="difference")
    difference.matvec(torch.ones(source.size, dtype=F64))
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("name", ["batchnorm", "dropout"])
def test_a_failing_loss_leaves_nothing_behind_either(name):
    model, loss, batch = build(name)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def broken(b):
        loss(b)
        torch.rand(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Hessian(broken, model.parameters(), [batch]).gradient()
    with pytest.raises(ZeroDivisionError):
        Hessian(broken, model.parameters(), [batch], products="difference").gradient()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_hooks_on_parameters_and_forward_passes_that_renormalise_are_left_alone():
    net = nn.Linear(8, 1).double()
    _, _, data, _ = problem(32)
    loss = lambda b: nn.functional.mse_loss(net(b[0])[:, 0], b[1])  # noqa: E731
    plain = Hessian(loss, net.parameters(), [data]).matvec(torch.ones(9))
    calls = []
    handle = net.weight.register_hook(lambda g: calls.append(1) or g * 0)
    close(Hessian(loss, net.parameters(), [data]).matvec(torch.ones(9)), plain, 1e-12)
    assert not calls
    loss(data).backward()
    assert calls
    handle.remove()
    table = nn.Embedding(5, 3, max_norm=0.5).double()
    before = table.weight.detach().clone()
    source = Hessian(lambda x: table(x).square().mean(), table.parameters(), [torch.tensor([0, 1, 2, 3])])
    source.gradient()
    source.matvec(torch.ones(15))
    assert torch.equal(table.weight, before)


class Direct(nn.Module):
    """Uses a child by its forward, and its buffers by function: hooks on the child never run."""

    def __init__(self, by):
        super().__init__()
        self.bn, self.by = nn.BatchNorm1d(8), by

    def forward(self, x):
        if self.by == "forward":
            return self.bn.forward(x)
        return nn.functional.batch_norm(
            x, self.bn.running_mean, self.bn.running_var, self.bn.weight, self.bn.bias, True
        )


@pytest.mark.parametrize("by", ["forward", "function"])
def test_buffers_of_children_that_are_not_called_are_kept(by):
    net = Direct(by).double()
    before = copy.deepcopy(net.state_dict())
    source = Hessian(lambda b: net(b[0]).square().mean(), net.parameters(), [problem(32)[2]])
    source.matvec(torch.ones(16))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_batches_that_share_statistics_are_not_cut():
    net = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    _, _, data, _ = problem(256)
    sizes = []

    def loss(b):
        sizes.append(len(b[0]))
        return nn.functional.mse_loss(net(b[0])[:, 0], b[1])

    spectrum(Hessian(loss, net.parameters(), loader(data, 64)), 2)
    assert set(sizes[1:]) == {64}


@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm1d(6), nn.BatchNorm1d(6).eval(), nn.Dropout(0.5)])
def test_modules_are_left_out_of_sight_only_where_they_leave_nothing_behind(norm):
    net = nn.Sequential(nn.Linear(8, 6), copy.deepcopy(norm), nn.Linear(6, 2)).double()
    x, y = torch.randn(64, 8, dtype=F64), torch.arange(64) % 2
    before, seen, criterion = copy.deepcopy(net.state_dict()), [], nn.CrossEntropyLoss()

    def loss(b):
        seen.append(bool(torch.nn.modules.module._global_forward_pre_hooks))
        return criterion(net(b[0]), b[1])

    spectrum(Hessian(loss, net.parameters(), [(a, b) for a, b in zip(x.split(2), y.split(2))]), 1, points=16)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert seen[0]
    assert all(seen) == (not isinstance(norm, nn.Identity))
    assert seen.count(True) >= len(seen) // 32  # now and then somebody looks again
