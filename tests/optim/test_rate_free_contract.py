"""RateFree as a torch optimizer: groups, schedules, closures, bad input, other precisions, several processes."""

import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import infhess
from rate_free_cases import F64, data, flat, loss_of, small_net, train


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
    train(model, opt, 4)
    rate = opt._rate_state.log_rate
    model.zero_grad()
    x, y = data()
    report = opt.observe(lambda batch: loss_of(model)(batch) * math.nan, (x, y))
    assert "a curvature probe was skipped" in report.notes[0]
    assert opt._rate_state.log_rate == rate


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
    assert math.isnan(float(opt.rate))  # curvature was not seen
    assert math.isnan(opt.rate.std)


def test_a_forgotten_observe_is_named():
    model = small_net()
    opt = infhess.RateFree(model.parameters())
    loss_of(model)(data()).backward()
    with pytest.raises(RuntimeError, match="no training pass was seen"):
        opt.step()
    train(model, opt, 2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(200):
            opt.step()
    assert len([w for w in seen if "no training pass was seen for 160 steps" in str(w.message)]) == 1


@pytest.mark.parametrize(
    "wrong", [{"weight_decay": -1}, {"betas": (1.0, 0.9)}, {"betas": 0.9}, {"lr": -1.0}, {"eps": math.nan}]
)
def test_bad_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        infhess.RateFree([nn.Parameter(torch.ones(1))], **wrong)


def test_an_lr_that_is_not_one_is_said():
    """As skorch's default of .01, which would make everything a hundred times slower."""
    w = nn.Parameter(torch.ones(1))
    with pytest.warns(UserWarning, match=r"lr=0.01 multiplies .* pass lr=1"):
        infhess.RateFree([w], lr=0.01)
    for one in (1, 1.0, torch.tensor(1.0)):  # warnings are errors
        infhess.RateFree([w], lr=one)
    infhess.RateFree([{"params": [w], "lr": 0.1}])  # ratios between groups are meant


def test_sparse_gradients_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    opt = infhess.RateFree(table.parameters())
    loss = lambda batch: table(batch).square().mean()  # noqa: E731
    codes = torch.tensor([0, 1])
    loss(codes).backward()
    opt.observe(loss, codes)
    with pytest.raises(RuntimeError, match="sparse"):
        opt.step()


def test_groups_and_parameters_without_gradient():
    model, extra = small_net(), nn.Parameter(torch.ones(2, dtype=F64))
    opt = infhess.RateFree([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}])
    opt.add_param_group({"params": [extra]})
    train(model, opt, 1)  # learns rotations, and moves nothing
    before = flat(model).clone()
    train(model, opt, 1)
    moved = (flat(model) - before).abs()
    assert float(moved.max()) > 0
    first = sum(p.numel() for p in model[0].parameters())
    assert float(moved[first:].max()) == pytest.approx(10 * float(moved[:first].max()), rel=0.2)
    assert torch.equal(extra.detach(), torch.ones(2, dtype=F64))


SCHEDULES = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 0.5**t),
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.1),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "chained": lambda o: torch.optim.lr_scheduler.ChainedScheduler([SCHEDULES["lambda"](o), SCHEDULES["step"](o)]),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_reach_the_step(schedule):
    """What a step adds to z is the lr of this moment, times what it adds under the same rate with an lr of 1."""
    moves = []
    for scheduled in (False, True):
        model = small_net()
        opt = infhess.RateFree(model.parameters())
        opt._rate_state.rule = replace(opt._rate_state.rule, longest=math.inf)  # the bound by |w| knows lr
        scheduler = SCHEDULES[schedule](opt)
        train(model, opt, 4)
        for _ in range(2 * scheduled):
            scheduler.step(*[1.0] if schedule == "plateau" else [])
        before = opt.state[model[0].weight]["z"].clone()
        train(model, opt, 1, seed=5)
        moves.append((opt.state[model[0].weight]["z"] - before) / opt.param_groups[0]["lr"])
    assert opt.param_groups[0]["lr"] < 0.6
    torch.testing.assert_close(moves[1], moves[0], rtol=1e-9, atol=1e-12)


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


def test_a_loss_that_can_never_be_looked_at_is_an_error():
    model, batch = small_net(), data()
    opt = infhess.RateFree(model.parameters(), scaling="diagonal")
    loss_of(model)(batch).backward()
    with pytest.raises(ValueError, match="does not depend on any parameter"):
        opt.observe(torch.no_grad()(loss_of(model)), batch)
    bag = nn.EmbeddingBag(5, 2, mode="max")
    codes = torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(infhess.DoubleBackwardError, match="difference"):
        infhess.RateFree(bag.parameters(), scaling="diagonal").observe(lambda b: bag(b).square().mean(), codes)
    by_differences = infhess.RateFree(bag.parameters(), scaling="diagonal")
    assert by_differences.observe(lambda b: bag(b).square().mean(), codes, products="difference")


@pytest.mark.filterwarnings("ignore:.*exactly zero")
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


@pytest.mark.filterwarnings("ignore:.*exactly zero")
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


def test_looks_have_masks_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2)).double()
    opt, masks, seen = infhess.RateFree(model.parameters()), [], []
    model[1].register_forward_hook(lambda _, inputs, out: seen.append((out != 0).clone()))
    loss, (x, y) = loss_of(model), data()
    for _ in range(20):
        opt.zero_grad()
        loss((x[:8], y[:8])).backward()
        seen.clear()
        opt.observe(loss, (x[:8], y[:8]))
        masks += seen[:1]
        opt.step()
    first, second, *more = masks
    assert more
    assert not torch.equal(first, second)
    assert not torch.equal(second, more[0])


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
