"""Gradients that are clipped, scaled or summed on their way to the step: the learning rate does not change with it."""

import math

import pytest
import torch
from torch import nn

import infhess
from rate_free_cases import data, flat, loss_of, small_net
from rounding import rounded, spread

F64 = torch.float64


def trained(prepare, steps=80, observe_last=False, dropout=0.0, scale=1.0, draw=0):
    """RateFree with something done to gradients, before or after `observe`."""
    model = small_net()
    rounded(model.parameters(), F64, draw)
    opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data()
    g = torch.Generator().manual_seed(2)
    for _ in range(steps):
        part = torch.randint(len(x), (16,), generator=g)
        batch = (x[part], y[part])
        opt.zero_grad()
        (scale * loss(batch)).backward()
        if observe_last:
            prepare(model)
            opt.observe(loss, batch)
        else:
            opt.observe(loss, batch)
            prepare(model)
        opt.step()
    return model, opt


def spread_of_trained(*args, **options):
    return spread(lambda draw: flat(trained(*args, **options, draw=draw)[0]))


def clip(norm):
    return lambda model: nn.utils.clip_grad_norm_(model.parameters(), norm)


@pytest.mark.parametrize("observe_last", [False, True])
def test_the_rate_is_the_same_for_every_clip(observe_last):
    # Both norms are below that of every gradient: clipped gradients differ by a factor of ten, and nothing else.
    (_, opt_a), (b, _) = (trained(clip(norm), observe_last=observe_last) for norm in (1e-4, 1e-5))
    spread_of_trained(clip(1e-4), observe_last=observe_last).holds(flat(b), steps=80)
    free = trained(lambda model: None)[1]
    assert 0.6 < float(opt_a.rate) / float(free.rate) < 1.6  # normalised gradients have another D


def test_the_order_of_observe_and_clip_does_not_matter():
    spread_of_trained(clip(0.01)).holds(flat(trained(clip(0.01), observe_last=True)[0]), steps=80)


@pytest.mark.parametrize("scale", [2.0**16, 1e-3])
def test_gradients_of_a_scaled_loss_move_as_those_of_the_loss(scale):
    spread_of_trained(lambda model: None).holds(flat(trained(lambda model: None, scale=scale)[0]), steps=80)


def test_a_grad_scaler_that_unscales_in_its_step_changes_nothing():
    def unscale(model):
        for p in model.parameters():
            p.grad /= 2.0**16

    spread_of_trained(lambda model: None).holds(flat(trained(unscale, scale=2.0**16)[0]), steps=80)


@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_preconditioned_names_gradients_that_were_not_unscaled(base):
    model = small_net()
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[base]
    opt, loss, batch = infhess.Preconditioned(make(model.parameters(), lr=0.1)), loss_of(model), data()
    notes = []
    for scale in (1.0, 2.0**16, 2.0**16):
        opt.zero_grad()
        (scale * loss(batch)).backward()
        report = opt.observe(loss, batch)
        notes.append("unscale_" in "".join(report.notes) if report else False)
        opt.step()
    assert notes[0] is False
    assert any(notes[1:])


@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_a_scaler_that_unscales_after_observe_changes_nothing_in_nets(base):
    def path(scale, draw=0):
        model = small_net()
        rounded(model.parameters(), F64, draw)
        make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[base]
        opt = infhess.Preconditioned(make(model.parameters(), lr=0.1), blocks="layer")
        loss, (x, y) = loss_of(model), data()
        for i in range(60):
            part = torch.randint(len(x), (16,), generator=torch.Generator().manual_seed(i))
            opt.zero_grad()
            (scale * loss((x[part], y[part]))).backward()
            opt.observe(loss, (x[part], y[part]))
            for p in model.parameters():
                p.grad /= scale
            opt.step()
        return flat(model)

    spread(lambda draw: path(1.0, draw)).holds(path(2.0**16), steps=60)


def test_clipping_around_adam_in_nets_keeps_the_rate():
    def rate(norm):
        model = small_net()
        opt = infhess.Preconditioned(torch.optim.Adam(model.parameters(), lr=0.1), blocks="layer")
        loss, (x, y) = loss_of(model), data()
        for i in range(90):
            part = torch.randint(len(x), (16,), generator=torch.Generator().manual_seed(i))
            opt.zero_grad()
            loss((x[part], y[part])).backward()
            nn.utils.clip_grad_norm_(model.parameters(), norm)
            opt.observe(loss, (x[part], y[part]))
            opt.step()
        return opt._state.rate

    # Adam's own ε keeps this from being exact.
    assert rate(1e-2) == pytest.approx(rate(1e-3), rel=1e-2)


# ---- gradients that are not finite


def active(base, observing):
    w = nn.Parameter(torch.ones(4, dtype=F64))
    opt = infhess.Preconditioned(base([w]), rank=2)
    loss = lambda b: (b * w).square().mean()  # noqa: E731
    batches = [torch.randn(32, 4, generator=torch.Generator().manual_seed(i), dtype=F64) for i in range(12)]
    if not observing:
        opt.update(loss, batches)
    return w, opt, loss, batches


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("observing", [True, False])
@pytest.mark.parametrize(
    "base",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_a_gradient_that_is_not_finite_moves_nothing_and_is_told(base, observing, bad):
    w, opt, loss, batches = active(base, observing)

    def step(batch, spoil=False):
        opt.zero_grad()
        loss(batch).backward()
        report = opt.observe(loss, batch) if observing else None
        if spoil:
            w.grad[1] = bad
        opt.step()
        return report

    for batch in batches[:4]:
        step(batch)
    before, state = w.detach().clone(), {k: v.clone() for k, v in opt.state[w].items() if k in ("exp_avg", "step")}
    step(batches[4], spoil=True)
    assert torch.equal(w.detach(), before)
    assert all(torch.equal(opt.state[w][k], v) for k, v in state.items())
    reports = [step(batch) for batch in batches[5:] * 8] if observing else [opt.update(loss, batches)]
    told = [note for r in reports if r for note in r.notes if "NaN or infinity" in note]
    assert len(told) == 1
    assert told[0].startswith("1 step")
    assert bool(torch.isfinite(w).all())


# ---- no learning rate is known yet


@pytest.mark.parametrize("blocks", ["whole", "layer"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_until_a_rate_is_known_no_step_is_made(blocks, momentum):
    w = nn.Parameter(torch.ones(1, dtype=F64))
    base = torch.optim.SGD([w], lr=100.0, weight_decay=0.1, momentum=momentum)
    opt = infhess.Preconditioned(base, blocks=blocks)
    dead, live = (lambda b: 0 * (b * w).sum()), (lambda b: (b * (w - 2)).square().mean())
    for loss, still in ((dead, True), (dead, True), (lambda b: (b * w).mean(), True), (live, False)):
        before = w.detach().clone()
        for _ in range(3):
            opt.zero_grad()
            loss(torch.ones(8, 1, dtype=F64)).backward()
            report = opt.observe(loss, torch.ones(8, 1, dtype=F64))
            opt.step()
            if still:
                assert report.notes
        assert torch.equal(w.detach(), before) == still
    assert 1 < float(w.detach()) < 3


def test_a_linear_loss_reports_no_rate():
    w = nn.Parameter(torch.ones(3, dtype=F64))
    opt, loss = infhess.RateFree([w]), lambda b: (b @ w).mean()
    for _ in range(6):
        opt.zero_grad()
        loss(torch.ones(2, 3, dtype=F64)).backward()
        report = opt.observe(loss, torch.ones(2, 3, dtype=F64))
        opt.step()
    assert math.isnan(float(opt.rate))
    assert math.isnan(opt.rate.std)
    assert report is None or math.isnan(report.rate.value)
