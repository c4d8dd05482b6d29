"""RateFree: the rule against a dense float64 reference, units, braking in words."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import infhess
from infhess.optim.rate.rate_state import RateState
from rate_free_cases import F64, data, flat, loss_of, small_net, train


def reference(model, steps, batch_size=16, weight_decay=0.0, schedule=lambda t: 1.0, beta=0.9, beta2=0.999):
    """The rule from its definition: flat vectors, a dense Hessian by double backward, no library code."""
    loss, (x, y) = loss_of(model), data()
    params = list(model.parameters())
    g_stream = torch.Generator().manual_seed(2)
    w = flat(model).clone()
    z, xbar, v = w.clone(), w.clone(), torch.zeros_like(w)
    X = P = eta = eta_look = last_look = usual = known = None
    slow, m, total, largest = False, 0.0, 0.0, 0.0
    sigma = 5 * (batch_size / 32) ** (1 / 3)
    for t in range(1, steps + 1):
        part = torch.randint(len(x), (batch_size,), generator=g_stream)
        batch = (x[part], y[part])
        grads = torch.autograd.grad(loss(batch), params, create_graph=True)
        g = torch.cat([p.reshape(-1) for p in grads])
        rows = torch.autograd.grad(g, params, torch.eye(len(g), dtype=F64), is_grads_batched=True)
        H = torch.cat([h.reshape(len(g), -1) for h in rows], 1)
        g = g.detach()
        v = beta2 * v + (1 - beta2) * g**2
        looking = t <= 4 or t - last_look >= 80 or (t <= 600 and eta > 2 * eta_look) or usual > 4 * known
        if looking:
            scale = float(g.norm()) / len(g) ** 0.5
            largest = max(largest, scale)
        D = 1 / ((v / (1 - beta2**t)).sqrt() + 1e-3 * largest)
        p = D * g
        if looking:
            h = H @ p
            o = 0.5 * math.log(float(g @ p) / float(h @ (D * h)))
            if X is None:
                X, P, eta = o, 0.2, 1e-3 * float(w.norm() / p.norm())
            else:
                P += 0.02
                k = P / (P + 0.2)
                o = o if scale >= 1e-4 * largest else min(o, X)
                X, P = X + k * (o - X), P * (1 - k)
            eta_look, last_look, known = eta, t, max(float(p.norm()), usual or 0.0)
        target = sigma * math.exp(X)
        slow = slow or (1.10 * eta > target and t > 10)
        eta = min((1.01 if slow else 1.10) * eta, target)
        lr = schedule(t - 1)
        length = float(p.norm())
        usual = length if usual is None else usual
        eta = min(eta, 0.15 * float(w.norm()) / (lr * usual))
        share = min(1.0, 4 * min(usual, known) / length)
        usual += 0.1 * (share * length - usual)
        m = max(m, eta)
        total += lr * m**2
        z = z - eta * share * lr * (p + weight_decay * w)
        xbar = xbar + lr * m**2 / total * (z - xbar)
        w = (1 - beta) * z + beta * xbar
        start = 0
        for q in params:
            q.data.copy_(w[start : start + q.numel()].view_as(q))
            start += q.numel()
    return w, xbar, eta, P


@pytest.mark.filterwarnings("ignore:RateFree. lr=0.5 multiplies")
@pytest.mark.parametrize(
    ("weight_decay", "lr", "schedule"),
    [
        (0.0, 1.0, None),
        (0.1, 0.5, None),
        (0.0, 1.0, lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 0.98**t)),
        (0.1, 0.5, lambda o: torch.optim.lr_scheduler.StepLR(o, 40, 0.3)),
        (0.0, 1.0, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 150)),
        (0.0, 1.0, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, 150, cycle_momentum=False)),
    ],
    ids=["plain", "decay", "lambda", "step", "cosine", "one-cycle"],
)
def test_it_is_the_rule_step_by_step(weight_decay, lr, schedule):
    ours, theirs = small_net(), small_net()
    opt, lrs = infhess.RateFree(ours.parameters(), scaling="diagonal", weight_decay=weight_decay, lr=lr), []
    scheduler, stream = schedule and schedule(opt), torch.Generator().manual_seed(2)
    for _ in range(130):
        lrs.append(opt.param_groups[0]["lr"])
        train(ours, opt, 1, stream=stream)
        if scheduler:
            scheduler.step()
    w, xbar, eta, P = reference(theirs, 130, weight_decay=weight_decay, schedule=lrs.__getitem__)
    torch.testing.assert_close(flat(ours), w, rtol=1e-7, atol=1e-9)
    with opt.averaged():
        torch.testing.assert_close(flat(ours), xbar, rtol=1e-7, atol=1e-9)
    eta *= opt.param_groups[0]["lr"]  # as the coming step has it
    assert float(opt.rate) == pytest.approx(eta, rel=1e-7)
    assert opt.rate.std == pytest.approx(eta * P**0.5, rel=1e-7)


def test_it_trains_and_the_rate_comes_with_an_interval():
    model, reports = small_net(), []
    opt = infhess.RateFree(model.parameters())
    x, y = data()
    before = float(loss_of(model)((x, y)).detach())
    train(model, opt, 400, reports=reports)
    with opt.averaged():
        after = float(loss_of(model)((x, y)).detach())
    assert after < before / 5
    low, high = opt.rate.interval(0.95)
    assert 0 < low < float(opt.rate) < high
    row = reports[-1].as_dict()
    assert row["rate/low"] < row["rate"] < row["rate/high"]
    assert all(isinstance(value, float) for value in row.values())
    assert sum(r.products for r in reports) == len(reports)
    assert sum(r.product_points for r in reports) == 16 * len(reports)


@settings(max_examples=8, deadline=None)
@given(scale=st.sampled_from([1e-6, 1e-3, 10.0, 1e3, 1e6]))
def test_units_of_the_loss_do_not_matter(scale):
    usual, other = small_net(), small_net()
    train(usual, infhess.RateFree(usual.parameters()), 60)
    train(other, infhess.RateFree(other.parameters()), 60, loss=loss_of(other, scale))
    torch.testing.assert_close(flat(usual), flat(other), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_units_of_the_weights_do_not_matter(scale):
    usual, inner = small_net(), small_net()
    weights = [nn.Parameter(p.detach() * scale) for p in inner.parameters()]
    names = [name for name, _ in inner.named_parameters()]

    def there(batch):
        out = torch.func.functional_call(inner, {n: w / scale for n, w in zip(names, weights)}, (batch[0],))
        return (out - batch[1]).square().mean()

    train(usual, infhess.RateFree(usual.parameters()), 60)
    train(inner, infhess.RateFree(weights), 60, loss=there)
    torch.testing.assert_close(
        flat(usual), torch.cat([w.detach().reshape(-1) for w in weights]) / scale, rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_a_start_from_weights_of_another_size_is_no_failure(scale):
    model = small_net()
    with torch.no_grad():
        for p in model.parameters():
            p *= scale
    x, y = data()
    before = float(loss_of(model)((x, y)).detach())
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 500)
    opt.finish()
    assert float(loss_of(model)((x, y)).detach()) < before / 2


def test_maximise_is_minimise_of_the_negative():
    up, down = small_net(), small_net()
    train(down, infhess.RateFree(down.parameters()), 30)
    train(up, infhess.RateFree(up.parameters(), maximize=True), 30, loss=loss_of(up, -1.0))
    assert torch.equal(flat(up), flat(down))


def test_accumulated_batches_count_together():
    model = small_net()
    opt, loss = infhess.RateFree(model.parameters()), loss_of(model)
    x, y = data()
    for _ in range(2):  # the first gradient is for the bases
        opt.zero_grad()
        for half in (slice(0, 32), slice(32, 64)):
            (loss((x[half], y[half])) / 2).backward()
            opt.observe(loss, (x[half], y[half]))
        opt.step()
    assert opt._rate_state.points == 64


def test_it_says_when_it_brakes_and_why():
    following = RateState()
    following.see(0.0)
    following.begin(1.0, 1.0)
    following.rate = following.allowed
    before = following.allowed
    for _ in range(20):
        following.see(-5.0)
    (note,) = following.diagnostics(before)
    assert "curvature along the steps has grown" in note
    following.advance(1.0, 1e3)
    assert following.rate == following.allowed
    following.advance(100.0, 1e3)
    assert "shortened" in following.diagnostics(before)[0]


def test_a_short_last_batch_hardly_changes_the_rate():
    def mean_rate(last):
        model = small_net()
        opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data(72)
        rates = []
        for _ in range(40):
            for part in (*[slice(0, 32), slice(32, 64)] * 2, *([slice(64, 65)] if last else [])):
                opt.zero_grad()
                loss((x[part], y[part])).backward()
                opt.observe(loss, (x[part], y[part]))
                opt.step()
                rates.append(float(opt.rate))
        assert (opt._rate_state.points < 32) is last  # the short one was probed
        return sum(rates[-30:]) / 30

    assert mean_rate(True) > 0.5 * mean_rate(False)
