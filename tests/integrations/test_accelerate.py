"""RateFree and Preconditioned through Accelerate."""

from __future__ import annotations

import copy

import pytest
import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import infhess
from infhess.integrations.accelerate import reachable, unwrap
from rounding import rounded, spread
from watch_cases import F64, diagonal, net, weights

g = torch.Generator().manual_seed(0)
x = torch.randn(320, 6, generator=g, dtype=F64)
DATA = TensorDataset(x, x[:, :3].argmax(1))


def preconditioned(params):
    return infhess.Preconditioned(torch.optim.Adam(params, lr=1.0), blocks="layer")


def prepared(size=32, make=infhess.RateFree, draw=0, **options):
    accelerator, model = Accelerator(cpu=True, **options), net("mlp")
    rounded(model.parameters(), F64, draw)
    opt = make(model.parameters())
    return accelerator, opt, *accelerator.prepare(model, opt, DataLoader(DATA, batch_size=size))


def epoch(accelerator, opt, model, wrapped, loader, clip=None):
    for a, b in loader:
        with accelerator.accumulate(model):
            with opt.watch():
                accelerator.backward(F.cross_entropy(model(a), b))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            wrapped.step()
            wrapped.zero_grad()
    return weights(model)


@pytest.fixture(autouse=True)
def _fresh():
    """Accelerate's state is shared by all Accelerators of a process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def test_the_optimizer_is_reached_through_the_wrapper():
    _, opt, _, wrapped, _ = prepared()
    assert unwrap(wrapped) is opt
    assert unwrap(opt) is opt
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert unwrap(other) is other


@pytest.mark.parametrize("make", [infhess.RateFree, preconditioned])
def test_attributes_are_reached_through_the_wrapper(make):
    accelerator, opt, model, wrapped, loader = prepared(make=make, gradient_accumulation_steps=2)
    with pytest.raises(AttributeError, match="watch"):
        wrapped.watch()
    opened = reachable(wrapped)
    there = epoch(accelerator, opened, model, opened, loader)
    assert torch.equal(there, epoch(*prepared(make=make, gradient_accumulation_steps=2)))
    assert opened is wrapped
    assert opened.report is opt.report
    opened.report, opened.param_groups[0]["lr"] = None, 2.0
    assert (opt.report, opt.param_groups[0]["lr"]) == (None, 2.0)
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        opened.nothing_of_that_name  # noqa: B018
    with pytest.raises(TypeError, match="reachable: expected"):
        reachable(opt)


def test_reachable_wrappers_are_copied_and_leave_others_alone():
    accelerator, _, model, wrapped, loader = prepared()
    copied = copy.deepcopy(reachable(wrapped))
    assert copied.rate is not None
    assert copied.optimizer is not wrapped.optimizer
    assert type(prepared()[3]).__name__ == "AcceleratedOptimizer"
    epoch(accelerator, wrapped, model, wrapped, loader)
    with wrapped.averaged():
        averaged = weights(model)
    wrapped.eval()
    assert torch.equal(weights(model), averaged)


@pytest.mark.parametrize("make", [infhess.RateFree, preconditioned])
def test_it_is_the_loop_without_accelerate(make):
    model = net("mlp")
    opt = make(model.parameters())
    for a, b in DataLoader(DATA, batch_size=32):
        opt.zero_grad()
        with opt.watch():
            F.cross_entropy(model(a), b).backward()
        opt.step()
    spread(lambda draw: epoch(*prepared(make=make, draw=draw))).holds(weights(model), steps=10)


@pytest.mark.parametrize("make", [diagonal, preconditioned])
@pytest.mark.parametrize("clip", [None, 1e-3])
def test_micro_batches_are_one_batch(make, clip):
    parts = epoch(*prepared(16, make, gradient_accumulation_steps=2), clip)
    spread(lambda draw: epoch(*prepared(make=make, draw=draw), clip)).holds(parts, steps=10)


def test_a_closure():
    accelerator, _, model, wrapped, loader = prepared()
    for a, b in loader:

        def closure(a=a, b=b):
            wrapped.zero_grad()
            accelerator.backward(F.cross_entropy(model(a), b))

        wrapped.step(closure)
    spread(lambda draw: epoch(*prepared(draw=draw))).holds(weights(model), steps=10)


def test_mixed_precision():
    accelerator, opt, model, wrapped, loader = prepared(mixed_precision="bf16")
    model.float()
    for a, b in loader:
        with opt.watch():
            accelerator.backward(F.cross_entropy(model(a.float()), b))
        wrapped.step()
        wrapped.zero_grad()
    assert float(opt.rate) > 0


def test_eval_and_train_reach_the_optimizer():
    accelerator, opt, model, wrapped, loader = prepared()
    before = epoch(accelerator, opt, model, wrapped, loader)
    wrapped.eval()
    assert torch.equal(weights(model), torch.cat([own["averaged"].flatten() for own in opt.state.values()]))
    wrapped.train()
    assert torch.equal(weights(model), before)


@pytest.mark.parametrize("averaged", [False, True])
def test_a_state_that_was_saved_goes_on_bit_for_bit(averaged, tmp_path):
    first = prepared()
    epoch(*first)
    if averaged:
        first[3].eval()
    first[0].save_state(tmp_path)
    first[3].train()
    there, second = epoch(*first), prepared()
    second[0].load_state(tmp_path)
    second[3].train()
    assert torch.equal(epoch(*second), there)
