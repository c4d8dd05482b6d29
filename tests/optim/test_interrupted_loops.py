"""Loops that do not go as planned: batches without a step, errors in between, other optimizers, changes midway."""

import copy
import math

import pytest
import torch
from torch import nn

import infhess
from rate_free_cases import batch_norm, data, flat, loss_of, small_net, train

F64 = torch.float64


def quadratic(lr=0.1, **options):
    w = nn.Parameter(torch.ones(4, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=lr), **options)
    batches = [torch.randn(16, 4, generator=torch.Generator().manual_seed(i), dtype=F64) for i in range(40)]
    return w, opt, (lambda b: (b * w).square().mean()), batches


def backward(opt, loss, batch):
    opt.zero_grad()
    loss(batch).backward()


def test_another_optimizer_may_step_between_observe_and_step():
    model = small_net()
    body, head = infhess.RateFree(model[0].parameters()), torch.optim.SGD(model[2].parameters(), lr=0.01)
    loss, batch = loss_of(model), data()
    for _ in range(10):
        model.zero_grad()
        loss(batch).backward()
        body.observe(loss, batch)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
        head.step()
        body.step()
    assert math.isfinite(float(body.rate))
    assert body._prober.probe is None


def test_an_update_survives_a_first_window_of_micro_batches():
    _, opt, loss, batches = quadratic(rank=3)
    opt.update(loss, batches)
    backward(opt, loss, batches[0])
    opt.observe(loss, batches[0])
    opt.observe(loss, batches[1])
    opt.step()
    assert opt._state.directions == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_first_batch_that_is_not_finite_moves_nothing(bad):
    w, opt, loss, batches = quadratic(lr=123.0)
    with pytest.raises(ValueError, match="finite"):
        opt.observe(loss, batches[0] * bad)
    w.grad = torch.full_like(w, bad)
    opt.step()
    w.grad = torch.ones_like(w)
    opt.step()
    assert torch.equal(w.detach(), torch.ones(4, dtype=F64))
    for batch in batches:
        backward(opt, loss, batch)
        opt.observe(loss, batch)
        opt.step()
    assert float(w.detach().norm()) < 0.1


def test_a_group_that_comes_between_observe_and_step_is_no_step_at_the_rate_given():
    w, opt, loss, batches = quadratic(lr=123.0)
    backward(opt, loss, batches[0])
    opt.observe(loss, batches[0])
    opt.add_param_group({"params": [nn.Parameter(torch.zeros(2, dtype=F64))]})
    opt.step()
    assert float((w.detach() - 1).norm()) < 2


def test_steps_that_a_grad_scaler_left_out_are_no_micro_batches():
    model = small_net()
    opt, loss, batch = infhess.RateFree(model.parameters()), loss_of(model), data()
    for i in range(6):
        backward(opt, loss, batch)
        if i < 3:
            for p in model.parameters():
                p.grad.mul_(math.inf)
        opt.observe(loss, batch)
        if i >= 3:
            opt.step()
    assert opt._rate_state.micro_batches == 1
    assert opt._rate_state.points == 64
    w, opt, loss, batches = quadratic()
    notes = []
    for i, b in enumerate(batches):
        backward(opt, loss, b)
        if i in (5, 6):
            w.grad.mul_(math.inf)
        report = opt.observe(loss, b)
        notes += report.notes if report else ()
        if i not in (5, 6):
            opt.step()
    assert opt._state.micro_batches == 1
    assert sum(int(note.split()[0]) for note in notes if "not made" in note) == 2
    assert "unscale_" not in "".join(notes)


def test_batch_norm_is_found_with_differences_too():
    model = batch_norm()
    opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data()
    for _ in range(5):
        backward(opt, loss, (x, y))
        opt.observe(loss, (x, y), products="difference")
        opt.step()
    with opt.averaged():
        torch.testing.assert_close(model[1].running_mean, model[0](x).mean(0).detach())


def test_what_was_told_is_not_told_again():
    model = small_net()
    opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data()
    told = []
    for i in range(260):
        part = torch.randint(64, (16,), generator=torch.Generator().manual_seed(i))
        backward(opt, loss, (x[part], y[part]))
        report = opt.observe(loss, (x[part], y[part]))
        told += [note for note in report.notes if "NaN" in note] if report else []
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if i == 20:
            model[0].weight.grad[0, 0] = math.nan
        opt.step()
    assert len(told) == 1


def test_notes_of_irregular_windows_are_kept():
    w, opt, loss, batches = quadratic()
    told = []
    for i in range(60):
        opt.zero_grad()
        for b in batches[i % 30 : i % 30 + 1 + i % 2]:
            loss(b).backward()
            report = opt.observe(loss, b)
            told += report.notes if report else ()
        if i % 2:
            w.grad[0] = math.nan
        opt.step()
    told += opt.update(loss, batches).notes
    assert sum(int(note.split()[0]) for note in told if "NaN" in note) == 30


def test_rate_free_loads_what_it_saved_whatever_is_frozen():
    model = small_net()
    model[0].weight.requires_grad_(False)
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 3)
    model[0].weight.requires_grad_(True)
    opt.load_state_dict(opt.state_dict())
    train(model, opt, 3)
    for p in model.parameters():
        p.requires_grad_(False)
    still = infhess.RateFree(model.parameters())
    still.load_state_dict(still.state_dict())
    with pytest.raises(ValueError, match="is it a checkpoint of RateFree"):
        opt.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_an_error_in_a_loss_leaves_nothing_behind(error):
    model = small_net()
    opt, loss, batch = infhess.RateFree(model.parameters()), loss_of(model), data()
    train(model, opt, 4)
    assert opt._probes
    twin = copy.deepcopy((model, opt))

    def broken(b):
        raise error("out of memory")

    if error is RuntimeError:
        with pytest.raises(RuntimeError, match="out of memory"):
            opt.observe(broken, batch)
    else:
        with pytest.raises(ValueError, match="products"):
            opt.observe(loss, batch, products="exakt")
    for net, optimizer in ((model, opt), twin):
        train(net, optimizer, 10, seed=5)
    assert torch.equal(flat(model), flat(twin[0]))


def test_a_load_and_a_copy_in_eval_train_on_from_the_right_weights():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    train(model, opt, 20)
    saved, trained = copy.deepcopy(opt.state_dict()), flat(model).clone()
    train(model, opt, 5)
    opt.eval()
    opt.load_state_dict(saved)
    opt.resume()
    assert torch.equal(flat(model), trained)
    opt.eval()
    other, again = copy.deepcopy((model, opt))
    again.train()
    assert torch.equal(flat(other), trained)


def test_micro_batches_that_cannot_be_joined_and_schedules_from_zero():
    w = nn.Parameter(torch.ones(1, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1))
    loss = lambda b: (b * w).square().mean()  # noqa: E731
    for _ in range(6):
        opt.zero_grad()
        for length in (4, 5):
            batch = torch.ones(8, length, dtype=F64)
            loss(batch).backward()
            opt.observe(loss, batch)
        opt.step()
    assert float(w.detach()) < 1
    for group in opt.param_groups:
        group["lr"] = 0.0
    torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1.0)
    before = float(w.detach())
    opt.step()
    assert float(w.detach()) == before
