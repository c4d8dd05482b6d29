"""float16 with a GradScaler: products are taken along vectors that neither overflow nor vanish, and nothing else changes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import infhess
from infhess.curvature import in_range
from infhess.curvature.in_range import InRange
from infhess.optim.rate.probe import Reading
from infhess.optim.rate.prober import OVERFLOW
from watch_cases import F64, batch, net, train, weights

OPTIMIZERS = {
    "kronecker": lambda p: infhess.RateFree(p),
    "diagonal": lambda p: infhess.RateFree(p, scaling="diagonal"),
    "sgd": lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=0.1)),
    "adam": lambda p: infhess.Preconditioned(torch.optim.Adam(p, lr=1e-3)),
}


def digits(n=1024):
    """Ten noisy prototypes of 64 numbers: easy, if the net trains at all."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(10, (n,), generator=g)
    return torch.randn(10, 64, generator=g)[y] + 0.3 * torch.randn(n, 64, generator=g), y


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_net_trains_in_float16_with_a_scaler(name):
    model, (x, y) = classifier(), digits()
    opt, scaler, g = OPTIMIZERS[name](model.parameters()), torch.amp.GradScaler("cpu"), torch.Generator().manual_seed(1)
    for _ in range(200):
        part = torch.randint(len(x), (32,), generator=g)
        opt.zero_grad()
        with opt.watch():
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x[part]).float(), y[part])
            scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    if hasattr(opt, "rate"):
        opt.finish()
        assert opt.rate.value > 0
    with torch.no_grad():
        assert float(F.cross_entropy(model(x), y)) < 0.3  # chance is 2.3


@pytest.mark.parametrize("scale", [2.0**10, 2.0**16, 2.0**19])
@pytest.mark.parametrize("length", [2.0**-20, 1.0, 2.0**20])
def test_a_product_in_float16_is_that_of_single_precision_at_any_scale_and_length(scale, length):
    model, (x, y) = classifier(), digits(64)
    params = list(model.parameters())

    def graph(autocast):
        with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
            loss = F.cross_entropy(model(x).float(), y)
        return torch.autograd.grad(scale * loss, params, create_graph=True)

    exact, half = graph(False), graph(True)
    v = [length * g.detach().sign() for g in exact]
    expected = torch.autograd.grad(exact, params, v)
    found = InRange(list(v), params).product(lambda s: list(torch.autograd.grad(half, params, s, retain_graph=True)))
    error, size = (
        math.hypot(*(float((a - b).norm()) for a, b in zip(found, other)))
        for other in (expected, [torch.zeros_like(a) for a in found])
    )
    assert error < 0.02 * size


def test_a_product_that_overflows_is_taken_again_along_a_shorter_vector():
    w, taken = torch.full((4,), 3.0), []

    def narrow(s):
        taken.append(float(s[0].norm()))
        return [5 * s[0] * (math.inf if taken[-1] > 1e-3 else 1)]

    torch.testing.assert_close(InRange([w.clone()], [w]).product(narrow)[0], 5 * w, rtol=0, atol=0)
    assert len(taken) == 2
    never = InRange([w.clone()], [w]).product(lambda s: [s[0] * math.nan])
    assert not never[0].isfinite().any()  # and the optimizers say so


@pytest.mark.parametrize("vector", [torch.zeros(3), torch.full((3,), math.nan)])
def test_a_vector_without_a_length_stays(vector):
    InRange([vector], [torch.ones(3)]).product(lambda s: [s[0].clone()])
    torch.testing.assert_close(InRange([vector], [torch.ones(3)]).product(list)[0], vector, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_without_float16_no_bit_depends_on_the_length(name, dtype, monkeypatch):
    found = []
    for share in (-7, 0, -20):
        monkeypatch.setattr(in_range, "SHARE", share)
        model = net("mlp").to(dtype)
        opt = OPTIMIZERS[name](model.parameters())
        batches = [(x.to(dtype), y) for x, y in (batch("mlp", t) for t in range(30))]
        train(opt, lambda b, m=model: F.cross_entropy(m(b[0]), b[1]), batches, "watch")
        found.append(weights(model))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


class Infinite(torch.autograd.Function):
    """The identity, with an infinite derivative."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * math.inf


class Kink(torch.autograd.Function):
    """The identity, with an infinite second derivative."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return Infinite.apply(g)


def test_the_note_tells_an_overflow_from_a_missing_gradient():
    w = nn.Parameter(torch.ones(3))
    opt = infhess.RateFree([w], scaling="diagonal")
    with opt.watch():
        Kink.apply(w).square().sum().backward()
    opt.step()
    assert any(OVERFLOW in note for note in opt.report.notes)
    assert Reading.of(1.0, 1.0, 1.0, math.inf).overflow
    assert not Reading.of(0.0, 0.0, 0.0).overflow
    assert not Reading.of(1.0, 1.0, 1.0, 0.0).overflow
