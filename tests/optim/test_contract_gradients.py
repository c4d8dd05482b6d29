"""Gradients: put back after a step; sparse, missing, strided, complex, of other precisions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from contract import active, batches, each_base, loss_of, net, same, weights


@each_base
def test_gradients_are_as_they_were_after_a_step(base):
    model, opt = active(base)
    loss_of(model)(next(batches())).backward()
    held = [(p.grad, p.grad.clone()) for p in model.parameters()]
    opt.step()
    assert all(p.grad is g and torch.equal(g, c) for p, (g, c) in zip(model.parameters(), held))


def test_they_are_put_back_even_if_the_base_fails(monkeypatch):
    model, opt = active()
    loss_of(model)(next(batches())).backward()
    held, lr = [p.grad for p in model.parameters()], opt.param_groups[0]["lr"]
    monkeypatch.setattr(opt.base, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        opt.step()
    assert all(p.grad is g for p, g in zip(model.parameters(), held))
    assert opt.param_groups[0]["lr"] == lr


def test_sparse_gradients_are_named():
    model = nn.Embedding(5, 2, sparse=True)
    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1), rank=2)
    opt.update(lambda i: (model(i) - 1).square().mean(), [torch.arange(5)], products="difference")
    (model(torch.tensor([1])) - 1).square().mean().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        opt.step()


def test_no_gradients_at_all_is_no_step():
    w = nn.Parameter(torch.tensor([1.0, 1.0]))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), rank=2)
    opt.update(lambda x: (x * (w[0] ** 2 - w[1] ** 2 + w.sum())).mean(), [torch.ones(3, 1)])
    assert opt._state.limit < float("inf")
    opt.zero_grad()
    opt.step()
    assert torch.equal(w, torch.ones(2))


def test_a_single_number_is_a_parameter_too():
    s = nn.Parameter(torch.tensor(3.0))
    opt = infhess.Preconditioned(torch.optim.SGD([s], lr=0.1), rank=2)
    opt.update(lambda x: (x * (s - 1) ** 2).mean(), [torch.ones(4)])
    ((s - 1) ** 2).backward()
    opt.step()
    assert abs(float(s.detach()) - 1) < 2


@pytest.mark.parametrize("fused", [False, True])
def test_strides_of_gradients_are_kept(fused):
    ends = []
    for layout in (torch.contiguous_format, torch.channels_last):
        g = torch.Generator().manual_seed(0)
        w = nn.Parameter(torch.randn(4, 3, 3, 3, generator=g).to(memory_format=layout))
        a = torch.rand(8, 4, 3, 3, 3, generator=g)
        opt = infhess.Preconditioned(torch.optim.Adam([w], lr=0.01, fused=fused), rank=2, step_length="keep")

        def loss(x, w=w):
            return (x * (w - 1).square()).mean()

        opt.update(loss, [a[:4], a[4:]])
        for _ in range(4):
            opt.zero_grad()
            loss(a).backward()
            opt.step()
        ends.append(w.detach().contiguous())
    assert torch.allclose(*ends, rtol=1e-4, atol=1e-5)


def test_half_precision_gradients_do_not_overflow_the_limit():
    from infhess.optim.preconditioning.scaled_step import shortened

    g = torch.full((400,), 3000.0, dtype=torch.float16)
    (shorter,), _ = shortened([g], [1.0], 6.0)
    assert torch.allclose(shorter.float().norm(), torch.tensor(6.0), rtol=1e-2)


def test_complex_and_real_parameters_together():
    g = torch.Generator().manual_seed(0)
    r, c = nn.Parameter(torch.randn(3, generator=g)), nn.Parameter(torch.randn(4, dtype=torch.complex64, generator=g))
    opt = infhess.Preconditioned(torch.optim.SGD([r, c], lr=0.1), rank=4)

    def loss(x):
        return (x * (r.square().sum() + (c.abs() ** 2).sum())).mean()

    opt.update(loss, [torch.ones(4), torch.ones(4)])
    for _ in range(20):
        opt.zero_grad()
        loss(torch.ones(4)).backward()
        opt.step()
    assert float(c.detach().abs().max()) < 0.1


def test_complex_parameters_move_as_their_parts():
    ends = []
    for kind in ("complex", "parts"):
        g = torch.Generator().manual_seed(0)
        z = torch.randn(4, 2, generator=g, dtype=torch.float64)
        w = nn.Parameter(torch.view_as_complex(z.clone()) if kind == "complex" else z.clone())
        a = torch.randn(16, 4, 2, generator=g, dtype=torch.float64)

        def loss(batch, w=w):
            value = w if w.is_complex() else torch.view_as_complex(w)
            return ((torch.view_as_complex(batch) @ value).abs() ** 2).mean()

        opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0, momentum=0.5), rank=4)
        opt.update(loss, [a[:8], a[8:]])
        for _ in range(4):
            opt.zero_grad()
            loss(a).backward()
            opt.step()
        ends.append(torch.view_as_real(w.detach()) if w.is_complex() else w.detach())
    assert torch.allclose(*ends, rtol=1e-8)


@pytest.mark.filterwarnings("ignore:.*exactly zero")
def test_maximise_climbs():
    w = nn.Parameter(torch.ones(2))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0, maximize=True), rank=2)
    A = torch.tensor([[50.0, 1.0]])

    def loss(x):
        return -(x * (w - 3).square()).sum(1).mean()

    opt.update(loss, [A])
    for _ in range(80):
        opt.zero_grad()
        loss(A).backward()
        opt.step()
    assert torch.allclose(w.detach(), torch.full((2,), 3.0), atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    model = net().to(dtype)

    def loss(batch):
        return (model(batch[0].to(dtype)) - batch[1].to(dtype)).float().square().mean()

    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1), rank=3)
    report = opt.update(loss, batches())
    assert report.step > 0
    before = weights(model)
    loss(next(batches())).backward()
    opt.step()
    assert all(p.dtype == dtype and bool(torch.isfinite(p).all()) for p in model.parameters())
    assert not same(before, weights(model))
    state = opt.state_dict()
    again = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1), rank=3)
    again.load_state_dict(state)
    assert torch.equal(again.preconditioner.dense(), opt.preconditioner.dense())
