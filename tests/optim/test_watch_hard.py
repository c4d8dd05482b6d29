"""Training passes of all kinds under `watch`: each works, or is refused in words."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import infhess
from watch_cases import F64, batch, diagonal, mlp, net, train, weights


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.reentrant = mlp(), reentrant

    def forward(self, x):
        first = lambda x: self.layers[1](self.layers[0](x))  # noqa: E731
        h = first(x) if self.reentrant is None else checkpoint(first, x, use_reentrant=self.reentrant)
        return self.layers[2](h)


def rates(model, way="watch", through=None, steps=30):
    opt, forward = infhess.RateFree(model.parameters(), scaling="diagonal"), through or model
    loss = lambda b: F.cross_entropy(forward(b[0]), b[1])  # noqa: E731
    return train(opt, loss, (batch("mlp", t) for t in range(steps)), way)


def test_checkpoints_work_or_are_refused_in_words():
    plain = rates(Checkpointed(None).to(F64))
    torch.testing.assert_close(rates(Checkpointed(False).to(F64)), plain, rtol=1e-9, atol=0.0)
    model = Checkpointed(True).to(F64)
    with pytest.raises(infhess.DoubleBackwardError, match="use_reentrant=False"):
        rates(model, through=lambda x: model(x.requires_grad_()))


def test_compiled_models_run_as_written_on_probing_steps():
    model = net("mlp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(rates(model, through=compiled), rates(net("mlp")), rtol=1e-6, atol=0.0)


def test_a_backward_pass_that_is_not_seen_is_named():
    model = net("mlp")
    opt, before = infhess.RateFree(model.parameters(), scaling="diagonal"), weights(model)
    x, y = batch("mlp", 0)
    with opt.watch():
        torch.autograd.backward(F.cross_entropy(model(x), y))
    with pytest.raises(infhess.DoubleBackwardError, match=r"call loss.backward\(\)"):
        opt.step()
    assert torch.equal(weights(model), before)
    with opt.watch():
        F.cross_entropy(model(x), y).backward()
    opt.step()
    assert not torch.equal(weights(model), before)


def test_several_losses_are_their_sum():
    seen = []
    for apart in (False, True):
        model = net("mlp")
        opt = infhess.RateFree(model.parameters(), scaling="diagonal")
        for t in range(30):
            x, y = batch("mlp", t)
            opt.zero_grad()
            with opt.watch():
                out = model(x)
                first, second = F.cross_entropy(out, y), out.square().mean()
                if apart:
                    first.backward(retain_graph=True)
                    second.backward()
                else:
                    (first + second).backward()
            opt.step()
        seen.append(weights(model))
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-8, atol=1e-10)


def test_what_a_loss_differentiates_by_itself_is_no_training():
    """With the graph, as for a penalty on gradients, or without, as to weigh losses."""
    seen = []
    for extra in (False, True):
        model = net("mlp")
        opt, params = infhess.RateFree(model.parameters(), scaling="diagonal"), list(model.parameters())
        for t in range(12):
            x, y = batch("mlp", t)
            opt.zero_grad()
            with opt.watch():
                loss = F.cross_entropy(model(x), y)
                if extra:
                    torch.autograd.grad(model(x).square().mean(), params, retain_graph=True)
                    torch.autograd.grad(model(x).square().mean(), params, create_graph=True)
                loss.backward()
            opt.step()
        seen.append((weights(model), float(opt.rate)))
    assert torch.equal(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]


def test_a_graph_through_weights_that_another_optimizer_has_changed_is_named():
    generator, critic = nn.Linear(4, 6).to(F64), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(F64)
    opts = [infhess.RateFree(m.parameters(), scaling="diagonal") for m in (generator, critic)]
    with opts[0].watch(), opts[1].watch():
        critic(generator(torch.ones(2, 4, dtype=F64))).square().mean().backward()
    opts[1].step()
    with pytest.raises(ValueError, match="step with each optimizer before"):
        opts[0].step()


def test_two_optimizers_of_one_game_each_see_their_own_parameters():
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 6).to(F64), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to(F64)
    opts = infhess.RateFree(generator.parameters()), infhess.RateFree(critic.parameters())
    for t in range(100):
        g = torch.Generator().manual_seed(t)
        noise, real = torch.randn(32, 4, generator=g, dtype=F64), 1 + torch.randn(32, 6, generator=g, dtype=F64)
        opts[1].zero_grad()
        with opts[1].watch():
            fake = generator(noise).detach()
            (F.softplus(critic(fake)).mean() + F.softplus(-critic(real)).mean()).backward()
        opts[1].step()
        opts[0].zero_grad()
        with opts[0].watch():
            F.softplus(-critic(generator(noise))).mean().backward()
        opts[0].step()
    assert all(float(opt.rate) > 0 for opt in opts)
    assert opts[0]._rate_state.points == opts[1]._rate_state.points == 32
    assert bool(generator.bias.isfinite().all())


def test_one_loss_watched_by_two_optimizers():
    model = net("mlp")
    opts = [infhess.RateFree(layer.parameters()) for layer in (model[0], model[2])]
    x, y = batch("mlp", 0)
    for _ in range(5):
        with opts[0].watch(), opts[1].watch():
            F.cross_entropy(model(x), y).backward()
        for opt in opts:
            opt.step()
            opt.zero_grad()
    assert all(float(opt.rate) > 0 for opt in opts)


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
@pytest.mark.parametrize("make", [infhess.RateFree, lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=1.0))])
def test_a_grad_scaler_changes_nothing(make, scale):
    seen = []
    for enabled in (False, True):
        model = net("mlp")
        opt, scaler = make(model.parameters()), torch.amp.GradScaler("cpu", init_scale=scale, enabled=enabled)
        for t in range(30):
            x, y = batch("mlp", t)
            opt.zero_grad()
            with opt.watch():
                scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(opt)
            scaler.update()
        seen.append(weights(model))
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-6, atol=1e-9)


def test_a_batch_that_a_grad_scaler_left_out_is_no_micro_batch():
    model = net("mlp")
    opt, scaler = infhess.RateFree(model.parameters(), scaling="diagonal"), torch.amp.GradScaler("cpu")
    for t in range(6):
        x, y = batch("mlp", t)
        opt.zero_grad()
        with opt.watch():
            scaler.scale(F.cross_entropy(model(x * (torch.inf if t == 2 else 1.0)), y)).backward()
        scaler.step(opt)
        scaler.update()
    assert opt._rate_state.micro_batches == 1
    assert opt._rate_state.steps == 5


def around_sgd(params):
    return infhess.Preconditioned(torch.optim.SGD(params, lr=100.0), blocks="layer")


@pytest.mark.parametrize("make", [infhess.RateFree, diagonal, around_sgd])
def test_nothing_is_done_within_a_watch_that_is_open(make):
    model = net("mlp")
    opt, other = make(model.parameters()), make(net("mlp").parameters())
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    before, b = weights(model), batch("mlp", 0)
    for inside in (
        lambda: opt.step(lambda: loss(b).backward()),
        opt.step,
        lambda: opt.observe(loss, b),
        opt.watch().__enter__,
    ):
        with pytest.raises(RuntimeError, match=r"a watch\(\) is open; end its `with` block"), opt.watch():
            inside()
    assert torch.equal(weights(model), before)
    train(opt, loss, [batch("mlp", t) for t in range(3)], "watch")
    with opt.watch(), other.watch():  # two optimizers see one pass
        loss(b).backward()


def test_an_error_within_leaves_nothing_behind():
    model = net("mlp")
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    with pytest.raises(KeyError), opt.watch():
        raise KeyError
    assert not any(p._backward_hooks for p in model.parameters())
    assert opt._prober.micro_batches == 0


def test_graphs_that_the_caller_asks_for_are_the_callers():
    model = net("mlp")
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    x, y = batch("mlp", 0)
    with opt.watch(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        F.cross_entropy(model(x), y).backward(create_graph=True)
        assert model[0].weight.grad.requires_grad
    opt.step()
    assert float(opt.rate) > 0 or opt._rate_state.rate > 0


def test_autocast_within_is_trainings_own():
    model = net("mlp").float()
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    for t in range(20):
        x, y = batch("mlp", t)
        opt.zero_grad()
        with opt.watch(), torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x.float())
            assert out.dtype is torch.bfloat16
            F.cross_entropy(out, y).backward()
        opt.step()
    assert float(opt.rate) > 0


def test_dropout_and_batch_norm_run_once_a_step():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(norm, nn.Dropout(0.2), *mlp()).to(F64)
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    train(opt, loss, (batch("mlp", t) for t in range(20)), "closure")
    assert int(norm.num_batches_tracked) == 20
    with opt.averaged():
        model(batch("mlp", 0)[0])


def test_frozen_and_unused_parameters():
    model = net("mlp")
    model[0].bias.requires_grad_(False)
    unused = nn.Parameter(torch.ones(3, dtype=F64))
    opt = infhess.RateFree([*model.parameters(), unused])
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    train(opt, loss, (batch("mlp", t) for t in range(20)), "closure")
    assert torch.equal(unused.detach(), torch.ones(3, dtype=F64))
    assert float(opt.rate) > 0


def test_an_evaluation_between_micro_batches_changes_nothing():
    seen = []
    for evaluates in (False, True):
        model = net("mlp")
        opt = infhess.RateFree(model.parameters(), scaling="diagonal")
        for t in range(10):
            x, y = batch("mlp", t)
            opt.zero_grad()
            for part in (slice(0, 20), slice(20, 40)):
                with opt.watch():
                    (0.5 * F.cross_entropy(model(x[part]), y[part])).backward()
                if evaluates:
                    opt.eval()
                    model(x)
                    opt.train()
            opt.step()
        seen.append(weights(model))
    assert torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("make", [diagonal, lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=0.1))])
def test_a_closure_without_a_backward_pass_is_no_training_pass(make):
    """Gradients that were computed elsewhere: it runs once, and there is nothing to probe."""
    model, calls = net("mlp"), []
    opt = make(model.parameters())
    x, y = batch("mlp", 0)

    def closure():
        calls.append(1)
        return F.cross_entropy(model(x), y)

    for p, g in zip(model.parameters(), torch.autograd.grad(closure(), list(model.parameters()))):
        p.grad = g
    before = weights(model)
    if isinstance(opt, infhess.RateFree):
        with pytest.raises(RuntimeError, match="no training pass was seen"):
            opt.step(closure)
    else:
        opt.step(closure)
        torch.testing.assert_close(
            weights(model), before - 0.1 * torch.cat([p.grad.flatten() for p in model.parameters()])
        )
    assert len(calls) == 2
