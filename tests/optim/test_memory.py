"""Memory: nothing is held before there is something to hold, and a curvature probe peaks at a few copies."""

import math

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import infhess
from infhess.optim.scalings import SCALINGS
from peak import Peak


def numbers(state_dict):
    """Numbers in all tensors of a checkpoint."""
    return sum(t.numel() for t in tree_leaves(state_dict["state"]) if isinstance(t, torch.Tensor))


def wide_net():
    torch.manual_seed(0)
    hidden = [layer for _ in range(7) for layer in (nn.Linear(128, 128), nn.Tanh())]
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), *hidden, nn.Linear(128, 2))


def drive(model, opt, steps=6):
    loss = lambda b: nn.functional.mse_loss(model(b[0]), b[1])  # noqa: E731
    for i in range(steps):
        g = torch.Generator().manual_seed(i)
        batch = torch.randn(2, 64, generator=g), torch.randn(2, 2, generator=g)
        opt.zero_grad()
        loss(batch).backward()
        opt.observe(loss, batch)
        opt.step()
    return loss, batch


def test_observe_in_nets_holds_no_directions():
    for blocks in ("whole", "layer"):
        model = wide_net()
        size = sum(p.numel() for p in model.parameters())
        assert size > 100_000  # more than observe infers directions for
        opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1), blocks=blocks)
        drive(model, opt)
        assert numbers(opt.state_dict()) < 0.01 * size
        model = wide_net()
        opt = infhess.Preconditioned(torch.optim.Adam(model.parameters()), blocks=blocks)
        drive(model, opt)
        assert numbers(opt.state_dict()) < 2.01 * size  # Adam's own


def test_nothing_is_held_before_the_first_estimate():
    model = nn.Linear(20, 20)
    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 20)).sum().backward()
    opt.step()
    assert numbers(opt.state_dict()) < 100


def test_checkpoints_with_and_without_directions_load_into_each_other():
    def made(directions):
        torch.manual_seed(1)
        model = nn.Linear(64, 2)
        opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1), rank=3)
        loss = lambda b: nn.functional.mse_loss(model(b[0]), b[1])  # noqa: E731
        g = torch.Generator().manual_seed(9)
        batches = [(torch.randn(32, 64, generator=g), torch.randn(32, 2, generator=g)) for _ in range(8)]
        if directions:
            opt.update(loss, batches)
        return opt

    for first, second in ((True, False), (False, True), (True, True), (False, False)):
        one, other = made(first), made(second)
        other.load_state_dict(one.state_dict())
        assert torch.equal(other.preconditioner.dense(), one.preconditioner.dense())
        assert numbers(other.state_dict()) == numbers(one.state_dict())


def test_a_rank_that_is_not_used_is_said_once():
    for rank, expected in ((16, 1), (None, 0)):
        model, notes = wide_net(), []
        opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1), rank=rank, blocks="layer")
        loss = lambda b: nn.functional.mse_loss(model(b[0]), b[1])  # noqa: B023, E731
        for _ in range(5):
            batch = torch.randn(8, 64), torch.randn(8, 2)
            opt.zero_grad()
            loss(batch).backward()
            report = opt.observe(loss, batch)
            notes += report.notes if report else ()
            opt.step()
        assert len([note for note in notes if "rank = 16 is not used" in note]) == expected


def test_what_is_frozen_has_no_state():
    model = wide_net()
    for p in model[:-1].parameters():
        p.requires_grad_(False)
    live = sum(p.numel() for p in model.parameters() if p.requires_grad)
    opt = infhess.RateFree(model.parameters())
    drive(model, opt)
    shapes = [SCALINGS["kronecker"].shapes(p) for p in model.parameters() if p.requires_grad]
    bases = sum(math.prod(shape) for found in shapes for shape in found.values())
    assert numbers(opt.state_dict()) < 4 * live + bases
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(opt.state_dict())
    for p in model.parameters():  # what thaws later begins where it is
        p.requires_grad_(True)
    drive(model, again, 3)
    assert all(again.state[p]["step"] for p in model.parameters())
    with again.averaged():
        pass


def two_large_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 800), nn.Tanh(), nn.Linear(800, 100), nn.Tanh(), nn.Linear(100, 2))


@pytest.mark.parametrize("make", [wide_net, two_large_layers])
def test_a_probe_takes_four_copies_of_the_parameters_at_its_peak(make):
    """Two points, since activations of the graph count too, and grow with the batch: they are 1.5 copies at 64 points."""
    model = make()
    opt = infhess.RateFree(model.parameters())
    loss, batch = drive(model, opt, 4)  # after the one that learns bases, the fourth step is probed, too
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    opt.zero_grad()
    loss(batch).backward()
    known = [t for p in model.parameters() for t in (p, p.grad, *opt.state[p].values())]
    with Peak(known) as peak:
        assert opt.observe(loss, batch) is not None
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)  # so that the step reads the probe anew
        opt.step()
    assert peak.most < 4 * size, peak.most / size


@pytest.mark.parametrize("make", [wide_net, two_large_layers])
def test_a_probe_of_the_training_pass_takes_four_copies_at_its_peak(make):
    """Beside the gradient, which training makes anyway."""
    model = make()
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    loss, batch = drive(model, opt, 3)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    opt.zero_grad(set_to_none=False)
    known = [t for p in model.parameters() for t in (p, p.grad, *opt.state[p].values())]
    with Peak(known) as peak:
        with opt.watch():
            loss(batch).backward()
        opt.step()
    assert opt.report.products == 1
    assert peak.most - size < 4 * size, peak.most / size
