"""The curvature probe from the training pass: `watch` and `step(closure)` do what `observe` does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import infhess
from rounding import DRAWS, rounded, spread_of
from watch_cases import F64, NETS, WAYS, batch, net, train, weights

OPTIMIZERS = {
    "rate-free": lambda p: infhess.RateFree(p, scaling="diagonal"),
    "rotated": lambda p: infhess.RateFree(p),
    "sgd": lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=100.0), blocks="layer"),
    "momentum": lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=1e-6, momentum=0.9), blocks="layer"),
    "adam": lambda p: infhess.Preconditioned(torch.optim.Adam(p, lr=100.0), blocks="layer"),
}


def run(kind, way, optimizer="rate-free", steps=100, after=lambda model: None, draw=0):
    model = net(kind)
    rounded(model.parameters(), F64, draw)
    opt = OPTIMIZERS[optimizer](model.parameters())
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    rates = train(opt, loss, (batch(kind, t) for t in range(steps)), way, lambda: after(model))
    return rates, weights(model), opt, model


@pytest.mark.parametrize("kind", list(NETS))
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_the_three_ways_are_one_to_rounding(kind, optimizer):
    rates, ends = zip(*(run(kind, "observe", optimizer, draw=draw)[:2] for draw in range(DRAWS + 1)))
    known = ~rates[0].isnan()  # not before the first probe
    assert float(rates[0][-1]) > 0
    for way in ("watch", "closure"):
        found, w, *_ = run(kind, way, optimizer)
        assert torch.equal(~found.isnan(), known)
        spread_of([r[known] for r in rates]).holds(found[known], steps=100)
        spread_of(ends).holds(w, steps=100)


@pytest.mark.parametrize("optimizer", ["rate-free", "rotated"])
@pytest.mark.parametrize("way", WAYS)
def test_a_clipped_gradient_is_probed_as_it_is_stepped_with(way, optimizer):
    clip = lambda value: lambda model: nn.utils.clip_grad_norm_(model.parameters(), value)  # noqa: E731
    runs = [run("mlp", way, optimizer, after=clip(1e-4), draw=draw)[:2] for draw in range(DRAWS + 1)]
    for there, found in zip(zip(*runs), run("mlp", way, optimizer, after=clip(1e-5))):
        spread_of([end.nan_to_num() for end in there]).holds(found.nan_to_num(), steps=100)


@pytest.mark.parametrize("kind", list(NETS))
def test_the_batch_size_is_that_of_what_parameters_meet(kind):
    assert run(kind, "closure", steps=2)[2]._rate_state.points == 40


def test_points_that_are_given_count():
    model = net("mlp")
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    x, y = batch("mlp", 0)
    with opt.watch(points=7):
        F.cross_entropy(model(x), y).backward()
    opt.step()
    assert opt._rate_state.points == 7
    with pytest.raises(ValueError, match="points"), opt.watch(points=0):
        pass


def test_a_report_says_what_the_probe_found_and_cost():
    _, _, opt, _ = run("mlp", "watch", steps=100)
    assert opt.report.products == 1
    assert opt.report.product_points == 40
    assert opt.report.rate.std > 0


def test_nothing_happens_on_the_steps_between(monkeypatch):
    """No hook on a parameter, no graph of a gradient, attention as it is: seen from within forward."""
    model, seen = net("mlp"), []
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    model.register_forward_pre_hook(lambda *_: seen.append(len(model[0].weight._backward_hooks or ())))
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    train(opt, loss, (batch("mlp", t) for t in range(100)), "watch")
    assert seen[0] == 1
    assert sum(seen[30:]) <= 5
    assert not model[0].weight._backward_hooks


def test_gradients_come_without_a_graph_and_are_those_of_training():
    for way in WAYS:
        _, _, _, model = run("transformer", way, steps=1)
        assert not any(p.grad.requires_grad for p in model.parameters())
    model = net("mlp")
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    x, y = batch("mlp", 0)
    F.cross_entropy(model(x), y).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    opt.zero_grad()
    with opt.watch():
        F.cross_entropy(model(x), y).backward()
    for p, g in zip(model.parameters(), plain):
        torch.testing.assert_close(p.grad, g, rtol=0.0, atol=0.0)


def test_the_wrapper_is_its_base_bit_for_bit_without_a_closure():
    models = [net("mlp") for _ in range(2)]
    base = torch.optim.SGD(models[0].parameters(), lr=0.1)
    wrapped = infhess.Preconditioned(torch.optim.SGD(models[1].parameters(), lr=0.1))
    for model, opt in zip(models, (base, wrapped)):
        for t in range(3):
            x, y = batch("mlp", t)
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
    assert torch.equal(weights(models[0]), weights(models[1]))


def test_after_an_update_a_closure_changes_nothing_of_it():
    model = net("mlp")
    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1), rank=2)
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    step = opt.update(loss, [batch("mlp", t) for t in range(8)]).step
    train(opt, loss, (batch("mlp", t) for t in range(3)), "closure")
    assert opt._state.step == step


@pytest.mark.parametrize("make", [OPTIMIZERS["rate-free"], OPTIMIZERS["sgd"]])
def test_eager_graphs_end_with_the_step(make):
    model = net("mlp")
    opt = make(model.parameters())
    x, y = batch("mlp", 0)
    with opt.watch():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    opt.step()
    assert not (opt._prober.pieces if hasattr(opt, "_prober") else opt._observed)


def test_weights_in_single_precision_and_complex_ones():
    w = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j], dtype=torch.complex64))
    opt = infhess.RateFree([w])
    for _ in range(300):
        opt.zero_grad()
        with opt.watch():
            (w - (0.5 + 0.5j)).abs().square().mean().backward()
        opt.step()
    opt.finish()
    assert float((w.detach() - (0.5 + 0.5j)).abs().max()) < 0.2


@pytest.mark.parametrize("way", ["watch", "closure"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_notes_are_those_of_the_last_probe(way, optimizer):
    _, _, opt, model = run("mlp", way, optimizer, steps=5)
    opt.report = replace(opt.report, notes=("of an earlier probe",))
    opt._unread = ()
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    before = opt.report
    for t in range(200):
        train(opt, loss, [batch("mlp", t)], way)
        if opt.report is not before:
            assert len(set(opt.report.notes)) == len(opt.report.notes) <= 4
            assert not opt._unread
            before = opt.report
    assert "of an earlier probe" not in before.notes


@pytest.mark.parametrize("optimizer", ["rate-free", "rotated"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_the_rate_of_a_report_is_that_of_its_step(lr, way, optimizer):
    """Early, too, where it is far below what curvature allows; `lr` included."""
    model = net("mlp")
    opt = OPTIMIZERS[optimizer](model.parameters())
    torch.optim.lr_scheduler.LambdaLR(opt, lambda _: lr)
    loss, seen = lambda b: F.cross_entropy(model(b[0]), b[1]), None
    for t in range(100):
        opt.zero_grad()
        if way == "closure":
            opt.step(lambda t=t: (value := loss(batch("mlp", t)), value.backward())[0])
        elif way == "watch":
            with opt.watch():
                loss(batch("mlp", t)).backward()
            opt.step()
        else:
            loss(batch("mlp", t)).backward()
            given = opt.observe(loss, batch("mlp", t))
            opt.step()
            if given is not None and given.rate.value > 0:
                assert given.rate.value == pytest.approx(opt.rate.value, rel=1e-9)
        if opt.report is not seen and opt.rate.value > 0:
            seen = opt.report
            assert seen.rate == opt.rate
            assert seen.as_dict()["rate"] == opt.rate.value == lr * opt._rate_state.rate
            assert seen.allowed >= opt._rate_state.rate * (1 - 1e-12)
    assert seen is not None
