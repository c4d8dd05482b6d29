"""RateFree: the rule against a dense float64 reference, the contract of a torch optimizer, and what it does with bad input."""

import copy
import io
import math
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import infhess
from infhess.optim import rate as rules
from util import in_two_processes

F64 = torch.float64


def small_net(seed=0, dtype=F64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def data(n=64, seed=1, dtype=F64):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g, dtype=dtype)
    return x, torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin()], 1)


def loss_of(model, scale=1.0):
    return lambda batch: scale * (model(batch[0]) - batch[1]).square().mean()


def train(model, opt, steps, batch_size=16, loss=None, seed=2, stream=None, reports=None):
    loss = loss or loss_of(model)
    g = stream or torch.Generator().manual_seed(seed)
    x, y = data(dtype=next(model.parameters()).dtype)
    for _ in range(steps):
        part = torch.randint(len(x), (batch_size,), generator=g)
        opt.zero_grad()
        loss((x[part], y[part])).backward()
        report = opt.observe(loss, (x[part], y[part]))
        if report and reports is not None:
            reports.append(report)
        opt.step()
    return model


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# ---- the rule


def reference(model, steps, batch_size=16, weight_decay=0.0, lr=1.0, beta=0.9, beta2=0.999):
    """The rule from its definition: flat vectors, a dense Hessian by double backward, no library code."""
    loss, (x, y) = loss_of(model), data()
    params = list(model.parameters())
    g_stream = torch.Generator().manual_seed(2)
    w = flat(model).clone()
    z, xbar, v = w.clone(), w.clone(), torch.zeros_like(w)
    X = P = eta = eta_look = last_look = usual = None
    slow, m, total, scale = False, 0.0, 0.0, None
    sigma = 5 * (batch_size / 32) ** (1 / 3)
    for t in range(1, steps + 1):
        part = torch.randint(len(x), (batch_size,), generator=g_stream)
        batch = (x[part], y[part])
        grads = torch.autograd.grad(loss(batch), params, create_graph=True)
        g = torch.cat([p.reshape(-1) for p in grads])
        H = torch.stack(
            [torch.cat([h.reshape(-1) for h in torch.autograd.grad(e, params, retain_graph=True)]) for e in g]
        )
        g = g.detach()
        v = beta2 * v + (1 - beta2) * g**2
        looking = t <= 4 or t - last_look >= 80 or (t <= 600 and eta > 2 * eta_look)
        if looking:
            scale = float(g.norm()) / len(g) ** 0.5
        D = 1 / ((v / (1 - beta2**t)).sqrt() + 1e-8 * scale)
        p = D * g
        if looking:
            h = H @ p
            o = 0.5 * math.log(float(g @ p) / float(h @ (D * h)))
            if X is None:
                X, P, eta = o, 0.2, 1e-3 * float(w.norm() / p.norm())
            else:
                P += 0.02
                k = P / (P + 0.2)
                X, P = X + k * (o - X), P * (1 - k)
            eta_look, last_look = eta, t
        target = sigma * math.exp(X)
        slow = slow or (1.10 * eta > target and t > 10)
        eta = min((1.01 if slow else 1.10) * eta, target)
        length = float(p.norm())
        usual = length if usual is None else usual
        eta = min(eta, 0.15 * float(w.norm()) / (lr * usual))
        share = min(1.0, 4 * usual / length)
        usual += 0.1 * (share * length - usual)
        m = max(m, eta * lr)
        total += m**2
        z = z - eta * share * lr * (p + weight_decay * w)
        xbar = xbar + m**2 / total * (z - xbar)
        w = (1 - beta) * z + beta * xbar
        start = 0
        for q in params:
            q.data.copy_(w[start : start + q.numel()].view_as(q))
            start += q.numel()
    return w, xbar, eta, P


@pytest.mark.parametrize(("weight_decay", "lr"), [(0.0, 1.0), (0.1, 0.5)])
def test_it_is_the_rule_step_by_step(weight_decay, lr):
    ours, theirs = small_net(), small_net()
    opt = infhess.RateFree(ours.parameters(), weight_decay=weight_decay, lr=lr)
    train(ours, opt, 130)
    w, xbar, eta, P = reference(theirs, 130, weight_decay=weight_decay, lr=lr)
    torch.testing.assert_close(flat(ours), w, rtol=1e-7, atol=1e-9)
    with opt.averaged():
        torch.testing.assert_close(flat(ours), xbar, rtol=1e-7, atol=1e-9)
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
    for half in (slice(0, 32), slice(32, 64)):
        (loss((x[half], y[half])) / 2).backward()
        opt.observe(loss, (x[half], y[half]))
    opt.step()
    assert opt._following.points == 64


# ---- braking, in words


def test_it_says_when_it_brakes_and_why():
    following = rules.Following()
    following.see(0.0)
    following.begin(1.0, 1.0)
    following.rate = following.allowed
    before = following.allowed
    for _ in range(20):
        following.see(-5.0)
    (note,) = following.words(before)
    assert "curvature along the steps has grown" in note
    following.advance(1.0, 1e3)
    assert following.rate == following.allowed
    following.advance(100.0, 1e3)
    assert "shortened" in following.words(before)[0]


def test_a_gradient_that_is_not_finite_is_skipped_and_named():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 3)
    before, state = flat(model).clone(), copy.deepcopy(opt.state_dict()["state"])
    model[0].weight.grad[0, 0] = math.nan
    opt.step()
    assert torch.equal(flat(model), before)
    assert all(
        torch.equal(state[i][k], opt.state_dict()["state"][i][k])
        for i in state
        for k in ("z", "averaged", "exp_avg_sq")
    )
    reports = []
    train(model, opt, 60, reports=reports)
    assert any("NaN or infinity" in note for r in reports for note in r.notes)


def test_a_look_that_fails_changes_nothing_and_is_named():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 3)
    rate = opt._following.log_rate
    model.zero_grad()
    x, y = data()
    report = opt.observe(lambda batch: loss_of(model)(batch) * math.nan, (x, y))
    assert "a look was skipped" in report.notes[0]
    assert opt._following.log_rate == rate


def test_no_curvature_and_no_gradient_have_a_defined_end():
    w = nn.Parameter(torch.ones(3, dtype=F64))
    opt = infhess.RateFree([w])
    for factor in (0.0, 1.0, 1.0, 1.0):  # nothing at all, then a linear loss
        opt.zero_grad()
        loss = lambda batch, factor=factor: factor * (batch @ w).mean()  # noqa: E731
        loss(torch.ones(2, 3, dtype=F64)).backward()
        opt.observe(loss, torch.ones(2, 3, dtype=F64))
        opt.step()
    assert torch.isfinite(w).all()
    assert float(w.detach().max()) < 1
    assert float(opt.rate) < 1e-2


# ---- a torch optimizer


def test_a_forgotten_observe_is_named():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    loss_of(model)(data()).backward()
    with pytest.raises(RuntimeError, match="observe was not called"):
        opt.step()
    train(model, opt, 2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(200):
            opt.step()
    assert len([w for w in seen if "observe was not called for 160 steps" in str(w.message)]) == 1


@pytest.mark.parametrize("wrong", [{"weight_decay": -1}, {"betas": (1.0, 0.9)}, {"lr": -1.0}, {"eps": math.nan}])
def test_bad_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        infhess.RateFree([nn.Parameter(torch.ones(1))], **wrong)


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    opt = infhess.RateFree(table.parameters())
    loss = lambda batch: table(batch).square().mean()  # noqa: E731
    codes = torch.tensor([0, 1])
    loss(codes).backward()
    opt.observe(loss, codes)
    with pytest.raises(RuntimeError, match="sparse"):
        opt.step()


def test_groups_schedulers_and_parameters_without_gradient():
    model, extra = small_net(), nn.Parameter(torch.ones(2, dtype=F64))
    opt = infhess.RateFree([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}])
    opt.add_param_group({"params": [extra]})
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 0.5**t)
    before = flat(model).clone()
    train(model, opt, 1)
    moved = (flat(model) - before).abs()
    first = sum(p.numel() for p in model[0].parameters())
    assert float(moved[first:].max()) == pytest.approx(10 * float(moved[:first].max()), rel=0.2)
    assert torch.equal(extra.detach(), torch.ones(2, dtype=F64))
    schedule.step()
    assert opt.param_groups[1]["lr"] == 0.5


def test_a_closure_runs_once_and_its_loss_is_returned():
    model, calls = small_net(), []
    opt, loss, batch = infhess.RateFree(model.parameters()), loss_of(model), data()

    def closure():
        calls.append(1)
        opt.zero_grad()
        value = loss(batch)
        value.backward()
        opt.observe(loss, batch)
        return value

    found = opt.step(closure)
    assert len(calls) == 1
    assert found.requires_grad


def test_weights_loaded_before_the_first_step_are_where_it_starts():
    model, other = small_net(), small_net(seed=5)
    opt = infhess.RateFree(model.parameters())
    model.load_state_dict(other.state_dict())
    train(model, opt, 5)
    train(other, infhess.RateFree(other.parameters()), 5)
    assert torch.equal(flat(model), flat(other))


# ---- the averaged weights


def test_averaged_swaps_and_puts_back_bit_for_bit_and_nests():
    model = small_net(dtype=torch.float32)
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 40)
    trained = flat(model).clone()
    with opt.averaged():
        averaged = flat(model).clone()
        with opt.averaged():
            assert torch.equal(flat(model), averaged)
        assert torch.equal(flat(model), averaged)
        with pytest.raises(RuntimeError, match="leave averaged"):
            opt.step()
        with pytest.raises(RuntimeError, match="leave averaged"):
            opt.observe(loss_of(model), data())
    assert torch.equal(flat(model), trained)
    assert not torch.equal(averaged, trained)
    with pytest.raises(ZeroDivisionError), opt.averaged():
        1 / 0  # noqa: B018
    assert torch.equal(flat(model), trained)
    opt.finish()
    assert torch.equal(flat(model), averaged)
    train(model, opt, 1)
    assert torch.allclose(flat(model), averaged, atol=0.1)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
def test_a_checkpoint_goes_on_bit_for_bit(inside, dtype):
    model = small_net(dtype=dtype)
    opt, stream = infhess.RateFree(model.parameters()), torch.Generator().manual_seed(7)
    train(model, opt, 75, stream=stream)
    file = io.BytesIO()
    if inside:
        with opt.averaged():
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
        weights = flat(model).clone()
    else:
        torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    place = stream.get_state()
    train(model, opt, 60, stream=stream)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = small_net(seed=3, dtype=dtype)
    again = infhess.RateFree(other.parameters())
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    if inside:  # the model's file holds the averaged weights, and the optimizer's those that train
        assert not torch.equal(flat(other), weights)
        with again.averaged():
            assert torch.equal(
                flat(other), torch.cat([saved["model"][n].reshape(-1) for n, _ in other.named_parameters()])
            )
        again.resume()
        assert torch.equal(flat(other), weights)
    stream.set_state(place)
    train(other, again, 60, stream=stream)
    assert torch.equal(flat(model), flat(other))
    assert float(opt.rate) == float(again.rate)


def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_changes():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 5)
    before = copy.deepcopy(opt.state_dict())
    adam = torch.optim.Adam(small_net().parameters())
    with pytest.raises(ValueError, match="is it a checkpoint of RateFree"):
        opt.load_state_dict(adam.state_dict())
    wrong = copy.deepcopy(before)
    wrong["state"][0]["z"] = torch.zeros(3)
    with pytest.raises(ValueError, match="shape"):
        opt.load_state_dict(wrong)
    after = opt.state_dict()
    assert all(
        torch.equal(before["state"][i][k], after["state"][i][k]) for i in before["state"] for k in before["state"][i]
    )


def test_copies_and_pickles_go_on_alike():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 20)
    twin, pickled = copy.deepcopy((model, opt)), pickle.loads(pickle.dumps((model, opt)))
    for net, other in ((model, opt), twin, pickled):
        train(net, other, 60, seed=9)
    assert torch.equal(flat(model), flat(twin[0]))
    assert torch.equal(flat(model), flat(pickled[0]))


def test_complex_parameters_and_half_precision():
    w = nn.Parameter(torch.tensor([1 + 1j, 2 - 1j], dtype=torch.complex64))
    opt = infhess.RateFree([w])
    loss = lambda batch: (batch * (w - (0.5 + 0.5j)).abs().square()).mean()  # noqa: E731
    x = torch.ones(4, 2)
    for _ in range(300):
        opt.zero_grad()
        loss(x).backward()
        opt.observe(loss, x)
        opt.step()
    opt.finish()
    assert float((w.detach() - (0.5 + 0.5j)).abs().max()) < 0.2
    half = small_net(dtype=torch.bfloat16)
    train(half, infhess.RateFree(half.parameters()), 20)
    assert torch.isfinite(flat(half)).all()


# ---- BatchNorm


def batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).double()


def test_batch_norm_is_refreshed_for_the_averaged_weights():
    model = batch_norm()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 120)
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    model.eval()
    with opt.averaged():
        norm = model[1]
        inputs = [model[0](batch[0]) for _, batch in opt._recent]
        mean = torch.stack([x.mean(0) for x in inputs]).mean(0)
        var = torch.stack([x.var(0) for x in inputs]).mean(0)
        torch.testing.assert_close(norm.running_mean, mean.detach())
        torch.testing.assert_close(norm.running_var, var.detach())
        assert not norm.training
    assert all(torch.equal(v, buffers[k]) for k, v in model.named_buffers())
    assert norm.momentum == 0.1
    opt.finish()
    torch.testing.assert_close(norm.running_mean, mean.detach())


def test_batch_norm_after_a_restart_takes_the_batches_it_is_given():
    model = batch_norm()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 30)
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(opt.state_dict())
    x, y = data()
    with again.averaged(loss_of(model), [(x, y)]):
        torch.testing.assert_close(model[1].running_mean, model[0](x).mean(0).detach())
    stats = copy.deepcopy(model.state_dict())
    train(model, again, 1)  # one forward pass to find the layers leaves no trace beside training's own
    assert int(model[1].num_batches_tracked) == int(stats["1.num_batches_tracked"]) + 1
    assert len(again._recent) == 1


def test_layers_that_do_not_run_keep_their_statistics_and_other_buffers_stay():
    class Branched(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.other = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)
            self.last = nn.Linear(8, 2)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(()))

        def forward(self, x):
            h = self.norm(self.first(x))
            if self.training:
                self.calls += 1
                self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()  # another tensor takes the buffer's place
            return self.last(h)

    torch.manual_seed(0)
    model = Branched().double()
    model.other.running_mean.fill_(7.0)
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 20)
    assert int(model.calls) == 20
    before = model.mean.clone()
    with opt.averaged():
        pass
    opt.finish()
    assert int(model.calls) == 20
    assert torch.equal(model.mean, before)
    assert bool((model.other.running_mean == 7).all())


def test_statistics_are_gathered_in_eval_mode_too_after_a_restart():
    model = batch_norm()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 30)
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(opt.state_dict())
    model.eval()
    x, y = data()
    with again.averaged(loss_of(model), iter([(x, y)])):
        torch.testing.assert_close(model[1].running_mean, model[0](x).mean(0).detach())
    with pytest.raises(ValueError, match="a loss with them"), again.averaged(batches=[(x, y)]):
        pass
    with pytest.raises(ValueError, match="at least one batch"), again.averaged(loss_of(model), []):
        pass


def test_a_loss_that_differentiates_inside_is_fine_after_a_restart():
    model = batch_norm()

    def loss(batch):
        x = batch[0].detach().requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return (u - batch[1]).square().mean() + 0.01 * slope.square().mean()

    opt = infhess.RateFree(model.parameters())
    train(model, opt, 5, loss=loss)
    again = infhess.RateFree(model.parameters())
    again.load_state_dict(opt.state_dict())
    train(model, again, 2, loss=loss)
    with again.averaged():
        pass


def test_finish_that_fails_changes_nothing():
    model = batch_norm()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 20)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ZeroDivisionError):
        opt.finish(loss_of(model), (1 / 0 for _ in range(1)))
    opt._recent.append((lambda batch: 1 / 0, None))
    with pytest.raises(ZeroDivisionError):
        opt.finish()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---- what a review found


def test_a_short_last_batch_hardly_changes_the_rate():
    def mean_rate(last):
        model = small_net()
        opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data(72)
        rates = []
        for _ in range(40):
            for part in (slice(0, 32), slice(32, 64), *([slice(64, 65)] if last else [])):
                opt.zero_grad()
                loss((x[part], y[part])).backward()
                opt.observe(loss, (x[part], y[part]))
                opt.step()
                rates.append(float(opt.rate))
        return sum(rates[-30:]) / 30

    assert mean_rate(True) > 0.5 * mean_rate(False)


def test_a_loss_that_can_never_be_looked_at_is_an_error():
    model, batch = small_net(), data()
    opt = infhess.RateFree(model.parameters())
    loss_of(model)(batch).backward()
    with pytest.raises(ValueError, match="does not depend on any parameter"):
        opt.observe(torch.no_grad()(loss_of(model)), batch)
    bag = nn.EmbeddingBag(5, 2, mode="max")
    codes = torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(infhess.DoubleBackwardError, match="difference"):
        infhess.RateFree(bag.parameters()).observe(lambda b: bag(b).square().mean(), codes)
    assert infhess.RateFree(bag.parameters()).observe(lambda b: bag(b).square().mean(), codes, products="difference")


def test_gradients_of_zero_do_not_freeze_it():
    w = nn.Parameter(torch.full((5,), 0.1))
    x = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))
    opt, loss = infhess.RateFree([w]), lambda b: (b @ w - 3 * b.sum(1)).square().mean()
    for i in range(400):
        opt.zero_grad()
        (loss(x) * (i > 0 and not 20 < i < 60)).backward()
        opt.observe(loss, x)
        opt.step()
    opt.finish()
    assert float((w.detach() - 3).abs().max()) < 0.1


def test_what_is_frozen_does_not_count():
    first, second = small_net(), small_net()
    huge = nn.Parameter(torch.full((1000,), 1e3, dtype=F64), requires_grad=False)
    train(first, infhess.RateFree(first.parameters()), 10)
    train(second, infhess.RateFree([*second.parameters(), huge]), 10)
    torch.testing.assert_close(flat(first), flat(second))


def test_a_group_that_comes_late_has_an_average_of_its_own():
    torch.manual_seed(0)
    x = torch.randn(64, 3, dtype=F64)
    w, late = (nn.Parameter(torch.full((3,), 0.1, dtype=F64)) for _ in range(2))
    opt, loss = infhess.RateFree([w]), lambda b: (b @ (w - 1)).square().mean() + (b @ (late - 1)).square().mean()

    def steps(n):
        for _ in range(n):
            opt.zero_grad()
            loss(x).backward()
            opt.observe(loss, x)
            opt.step()

    steps(600)
    late.data.fill_(0.1)
    opt.add_param_group({"params": [late]})
    steps(300)
    opt.finish()
    assert float((late.detach() - 1).abs().max()) < 0.2


def test_two_from_one_checkpoint_are_independent():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 10)
    other = copy.deepcopy(model)
    again = infhess.RateFree(other.parameters())
    seen = []
    again.register_load_state_dict_post_hook(lambda o: seen.append(float(o.rate)))
    again.load_state_dict(opt.state_dict())
    assert seen == [float(opt.rate)]
    train(other, again, 5)
    assert float(opt.state[model[0].weight]["step"]) == 10


def test_moving_the_model_before_the_first_step_moves_the_state():
    model = small_net(dtype=torch.float32)
    opt = infhess.RateFree(model.parameters())
    model.double()
    train(model, opt, 5)
    assert opt.state[model[0].weight]["z"].dtype == F64


def test_distributed_checkpoints_with_a_frozen_parameter():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    def made():
        model = small_net()
        model[0].weight.requires_grad_(False)
        return model, infhess.RateFree(model.parameters())

    (model, opt), (other, again) = made(), made()
    train(model, opt, 10)
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, again, get_optimizer_state_dict(model, opt))
    for net, optimizer in ((model, opt), (other, again)):
        train(net, optimizer, 10, seed=4)
    assert torch.equal(flat(model), flat(other))


def test_looks_have_masks_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2)).double()
    opt, masks, seen = infhess.RateFree(model.parameters()), [], []
    model[1].register_forward_hook(lambda _, inputs, out: seen.append((out != 0).clone()))
    loss, (x, y) = loss_of(model), data()
    for _ in range(3):
        opt.zero_grad()
        loss((x[:8], y[:8])).backward()
        seen.clear()
        opt.observe(loss, (x[:8], y[:8]))
        masks.append(seen[0])
        opt.step()
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


def replica(rank, path, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    model = small_net()
    opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data()
    stream = torch.Generator().manual_seed(3)
    for _ in range(30):
        part = torch.randint(len(x), (16,), generator=stream)
        mine = part[8 * rank : 8 * rank + 8]
        opt.zero_grad()
        loss((x[mine], y[mine])).backward()
        for p in model.parameters():
            torch.distributed.all_reduce(p.grad)
            p.grad /= 2
        opt.observe(loss, (x[mine], y[mine]))
        opt.step()
    results.put((float(opt.rate), float(flat(model).sum()), opt._following.points))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_replicas_agree_upon_the_rate(tmp_path):
    found = in_two_processes(replica, tmp_path / "store")
    assert found[0] == found[1]
    assert found[0][2] == 16


def test_a_gradient_that_is_zero_moves_nothing_also_without_eps():
    w = nn.Parameter(torch.ones(4))
    opt = infhess.RateFree([w], eps=0.0, betas=(0.9, 0.9999))
    loss = lambda b: (b * w).square().mean()  # noqa: E731
    batch = torch.tensor([1.0, 1.0, 1.0, 0.0])
    for _ in range(3):
        opt.zero_grad()
        loss(batch).backward()
        opt.observe(loss, batch)
        opt.step()
    assert float(w.detach()[3]) == 1.0
    assert bool((w.detach()[:3] < 1).all())
