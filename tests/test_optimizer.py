"""The contract of a torch optimizer, for Preconditioned around each of torch's own: before the first estimate and after it."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel

import infhess

BASES = {
    "sgd": lambda p, **k: torch.optim.SGD(p, lr=0.05, **k),
    "momentum": lambda p, **k: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01, **k),
    "nesterov": lambda p, **k: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, **k),
    "adam": lambda p, **k: torch.optim.Adam(p, lr=0.01, **k),
    "amsgrad": lambda p, **k: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1, **k),
    "adamw": lambda p, **k: torch.optim.AdamW(p, lr=0.01, **k),
    "nadam": lambda p, **k: torch.optim.NAdam(p, lr=0.01, **k),
    "radam": lambda p, **k: torch.optim.RAdam(p, lr=0.01, **k),
    "adamax": lambda p, **k: torch.optim.Adamax(p, lr=0.01, **k),
    "rmsprop": lambda p, **k: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, **k),
    "adagrad": lambda p, **k: torch.optim.Adagrad(p, lr=0.05, **k),
    "asgd": lambda p, **k: torch.optim.ASGD(p, lr=0.05, **k),
    "adadelta": lambda p, **k: torch.optim.Adadelta(p, lr=1.0, **k),
    "rprop": lambda p, **k: torch.optim.Rprop(p, lr=0.01, **k),
    "adafactor": lambda p, **k: torch.optim.Adafactor(p, lr=0.01, **k),
}
MEASURED = [name for name in BASES if name not in ("radam", "adadelta", "rprop", "adafactor")]
each_base = pytest.mark.parametrize("base", BASES)


def net():
    torch.default_generator.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def batches(seed=0):
    g = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(8, 3, generator=g)
        yield x, x[:, :2].sin()


def loss_of(model):
    return lambda batch: (model(batch[0]) - batch[1]).square().mean()


def value_of(model):
    with torch.no_grad():
        return float(loss_of(model)(next(batches(7))))


def steps(model, opt, n=5, seed=1):
    stream, loss = batches(seed), loss_of(model)
    for _ in range(n):
        opt.zero_grad()
        loss(next(stream)).backward()
        opt.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def armed(base="sgd", model=None, rank=3, **options):
    model = model or net()
    opt = infhess.Preconditioned(BASES[base](model.parameters()), rank=rank, **options)
    steps(model, opt, 2)
    opt.update(loss_of(model), batches())
    return model, opt


# ---- it is its base


@each_base
def test_before_the_first_estimate_it_is_its_base_bit_for_bit(base):
    one, other = net(), net()
    steps(one, BASES[base](one.parameters()))
    steps(other, infhess.Preconditioned(BASES[base](other.parameters()), rank=3))
    assert same(weights(one), weights(other))


@each_base
def test_after_an_update_it_goes_down(base):
    model, opt = armed(base)
    before = value_of(model)
    steps(model, opt, 40)
    assert value_of(model) < before


@pytest.mark.parametrize("base", MEASURED)
def test_self_driving_goes_down_from_any_rate(base):
    ends = []
    for lr in (1e-6, 1e2):
        model = net()
        inner = BASES[base](model.parameters())
        inner.param_groups[0]["lr"] = lr
        opt, stream, loss = infhess.Preconditioned(inner, rank=3), batches(), loss_of(model)
        before = value_of(model)
        for _ in range(60):
            batch = next(stream)
            opt.zero_grad()
            loss(batch).backward()
            opt.observe(loss, batch)
            opt.step()
        assert value_of(model) < before
        ends.append(torch.cat([w.reshape(-1) for w in weights(model)]))
    assert torch.allclose(ends[0], ends[1], rtol=1e-3, atol=1e-4)


def test_bases_that_do_not_fit_are_named():
    w = [nn.Parameter(torch.ones(2))]
    with pytest.raises(TypeError, match="LBFGS"):
        infhess.Preconditioned(torch.optim.LBFGS(w))
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer"):
        infhess.Preconditioned(w)
    with pytest.raises(ValueError, match="rank"):
        infhess.Preconditioned(torch.optim.SGD(w), rank=0)
    with pytest.raises(ValueError, match="blocks"):
        infhess.Preconditioned(torch.optim.SGD(w), blocks="layers")
    with pytest.raises(ValueError, match="step_length"):
        infhess.Preconditioned(torch.optim.SGD(w), step_length="newton")


# ---- groups, rates and schedules


def test_it_is_an_optimizer_and_shares_groups_and_state_with_its_base():
    _model, opt = armed("adam")
    assert isinstance(opt, torch.optim.Optimizer)
    assert opt.param_groups is opt.base.param_groups
    assert opt.state is opt.base.state


@pytest.mark.parametrize("how", ["update", "observe"])
def test_groups_added_later_are_trained_at_their_own_rate_until_the_next_estimate(how):
    model = net()
    opt = infhess.Preconditioned(BASES["momentum"](model.parameters()), rank=3)
    extra = nn.Parameter(torch.ones(2))

    def loss(batch):
        return ((model(batch[0]) + extra - batch[1]) ** 2).mean()

    def train(n):
        for batch, _ in zip(batches(), range(n)):
            opt.zero_grad()
            loss(batch).backward()
            if how == "observe":
                opt.observe(loss, batch)
            opt.step()

    if how == "update":
        opt.update(loss, batches())
    train(10)
    opt.add_param_group({"params": [extra], "lr": 0.01})
    if how == "update":
        assert torch.equal(opt.preconditioner.dense(), torch.eye(opt.preconditioner.shape[0]))
        train(10)
        opt.update(loss, batches())
    train(150)
    assert not torch.equal(extra, torch.ones(2))
    assert float(loss(next(batches(7))).detach()) < 0.5
    assert opt.preconditioner.shape[0] == sum(p.numel() for p in model.parameters()) + 2


def test_ratios_between_the_rates_of_groups_stay():
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 1e-30}]
    opt = infhess.Preconditioned(torch.optim.SGD(groups), rank=3)
    opt.update(loss_of(model), batches())
    before = weights(model)
    steps(model, opt, 3)
    assert [torch.equal(a, b) for a, b in zip(before, weights(model))] == [False, False, True, True]


def test_a_schedule_with_a_peak_may_be_made_before_the_wrapper():
    ends = []
    for first in ("wrapper", "schedule"):
        model = net()
        base = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = infhess.Preconditioned(base, rank=3) if first == "wrapper" else None
        scheduler = torch.optim.lr_scheduler.OneCycleLR(base, max_lr=0.1, total_steps=30)
        opt = opt or infhess.Preconditioned(base, rank=3)
        opt.update(loss_of(model), batches())
        for i in range(10):
            steps(model, opt, 1, seed=i)
            scheduler.step()
        ends.append(weights(model))
    assert same(*ends)


def test_weight_decay_counts_where_a_step_is_measured():
    w = nn.Parameter(torch.ones(5))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1, weight_decay=0.1), rank=5)
    D, g = torch.tensor([100.0, 10.0, 1.0, 1e-2, 1e-3]), torch.Generator().manual_seed(0)
    data = [1 + 0.1 * torch.rand(16, 5, generator=g) for _ in range(8)]

    def loss(x):
        return (x * D * w * w).mean(0).sum()

    opt.update(loss, data)
    for _ in range(60):
        opt.zero_grad()
        loss(data[0]).backward()
        opt.step()
    assert float(w.detach().abs().max()) < 0.1


SCHEDULES = {
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 0.5**t),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("on", ["wrapper", "base"])
def test_schedules_reach_the_step(schedule, on):
    model = net()
    base = BASES["momentum"](model.parameters())
    opt = infhess.Preconditioned(base, rank=2)
    scheduler = SCHEDULES[schedule](opt if on == "wrapper" else base)
    opt.update(loss_of(model), batches())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(6):
            steps(model, opt, 1)
            scheduler.step(1.0) if schedule == "plateau" else scheduler.step()
    assert opt.param_groups[0]["lr"] == base.param_groups[0]["lr"] != 0.05


def test_rates_and_momentum_are_as_they_were_after_a_step():
    model, opt = armed("momentum")
    before = {k: v for k, v in opt.param_groups[0].items() if k != "params"}
    steps(model, opt, 1)
    assert {k: v for k, v in opt.param_groups[0].items() if k != "params"} == before


def test_a_tensor_for_a_rate():
    ends = []
    for lr in (0.05, torch.tensor(0.05)):
        model = net()
        opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=lr, foreach=False), rank=2)
        opt.update(loss_of(model), batches())
        steps(model, opt, 3)
        ends.append(torch.cat([w.reshape(-1) for w in weights(model)]))
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-7)


def test_a_rate_of_zero_at_the_start_is_named():
    model = net()
    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.0), rank=2)
    with pytest.raises(ValueError, match="lr"):
        opt.update(loss_of(model), batches())


@pytest.mark.parametrize("kind", ["foreach", "fused"])
@pytest.mark.parametrize("base", ["sgd", "momentum", "adam", "adamw"])
def test_kinds_of_the_base_agree(base, kind):
    ends = []
    for options in ({"foreach": False}, {kind: True}):
        model = net()
        opt = infhess.Preconditioned(BASES[base](model.parameters(), **options), rank=3)
        steps(model, opt, 2)
        opt.update(loss_of(model), batches())
        steps(model, opt, 3)
        ends.append(torch.cat([w.reshape(-1) for w in weights(model)]))
    assert torch.allclose(*ends, rtol=1e-4, atol=1e-6)


# ---- gradients


@each_base
def test_gradients_are_as_they_were_after_a_step(base):
    model, opt = armed(base)
    loss_of(model)(next(batches())).backward()
    held = [(p.grad, p.grad.clone()) for p in model.parameters()]
    opt.step()
    assert all(p.grad is g and torch.equal(g, c) for p, (g, c) in zip(model.parameters(), held))


def test_they_are_put_back_even_if_the_base_fails(monkeypatch):
    model, opt = armed()
    loss_of(model)(next(batches())).backward()
    held, lr = [p.grad for p in model.parameters()], opt.param_groups[0]["lr"]
    monkeypatch.setattr(opt.base, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        opt.step()
    assert all(p.grad is g for p, g in zip(model.parameters(), held))
    assert opt.param_groups[0]["lr"] == lr


@pytest.mark.parametrize("base", ["momentum", "adam"])
def test_parameters_without_gradient_are_left_alone(base):
    model, opt = armed(base)
    loss_of(model)(next(batches())).backward()
    model[0].weight.grad = None
    before = weights(model)
    opt.step()
    assert [torch.equal(a, b) for a, b in zip(before, weights(model))] == [True, False, False, False]


def test_frozen_and_unused_parameters():
    model = net()
    unused = nn.Parameter(torch.ones(3))
    model[0].bias.requires_grad_(False)
    opt = infhess.Preconditioned(torch.optim.SGD([*model.parameters(), unused], lr=0.1), rank=3)
    opt.update(loss_of(model), batches())
    before = model[0].bias.clone()
    steps(model, opt, 3)
    assert torch.equal(before, model[0].bias)
    assert torch.equal(unused, torch.ones(3))


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
    assert opt._numbers.limit < float("inf")
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
    from infhess.optim.transform import shortened

    g = torch.full((400,), 3000.0, dtype=torch.float16)
    (shorter,) = shortened([g], [1.0], 6.0)
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


# ---- closures, hooks, scaling and clipping


def test_a_closure_runs_once_with_gradients_on_and_its_loss_is_returned():
    model, opt = armed("adam")
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        opt.zero_grad()
        value = loss_of(model)(next(batches()))
        value.backward()
        return value

    before = weights(model)
    with torch.no_grad():
        value = opt.step(closure)
    assert calls == [True]
    assert value.item() > 0
    assert not same(before, weights(model))


@pytest.mark.parametrize("state", ["unarmed", "armed"])
def test_hooks_fire_once_and_with_the_wrapper(state):
    model = net()
    opt = infhess.Preconditioned(BASES["sgd"](model.parameters()), rank=2)
    if state == "armed":
        opt.update(loss_of(model), batches())
    seen = []
    handles = [
        register_optimizer_step_pre_hook(lambda o, *_: seen.append(("global pre", o))),
        register_optimizer_step_post_hook(lambda o, *_: seen.append(("global post", o))),
        opt.register_step_pre_hook(lambda o, *_: seen.append(("pre", o))),
        opt.register_step_post_hook(lambda o, *_: seen.append(("post", o))),
    ]
    steps(model, opt, 1)
    for handle in handles:
        handle.remove()
    assert sorted(name for name, _ in seen) == ["global post", "global pre", "post", "pre"]
    assert all(o is opt for _, o in seen)


def test_gradient_scaler():
    ends = []
    for scale in (False, True):
        model, opt = armed()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scale)
        stream = batches(3)
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(loss_of(model)(next(stream))).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()
        ends.append(torch.cat([w.reshape(-1) for w in weights(model)]))
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-7)


def test_averaging_by_torch_itself():
    model, opt = armed()
    average = AveragedModel(model)
    for _ in range(4):
        steps(model, opt, 1)
        average.update_parameters(model)
    assert not same(weights(model), weights(average.module))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_a_compiled_step_is_the_step(base, backend):
    ends = []
    for compiled in (False, True):
        model, opt = armed(base)
        step = torch.compile(opt.step, backend=backend) if compiled else opt.step
        stream = batches(2)
        for _ in range(3):
            opt.zero_grad()
            loss_of(model)(next(stream)).backward()
            step()
        ends.append(torch.cat([w.reshape(-1) for w in weights(model)]))
    torch._dynamo.reset()
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-6)


# ---- copies and checkpoints


def through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@each_base
@pytest.mark.parametrize("blocks", ["whole", "layer"])
def test_a_checkpoint_resumes_bit_for_bit(base, blocks):
    model, opt = armed(base, blocks=blocks)
    steps(model, opt, 3)
    saved = through_a_file({"model": model.state_dict(), "opt": opt.state_dict()})
    other = net()
    other.load_state_dict(saved["model"])
    again = infhess.Preconditioned(BASES[base](other.parameters()), rank=3, blocks=blocks)
    again.load_state_dict(state_dict=saved["opt"])
    steps(model, opt, 3, seed=9)
    steps(other, again, 3, seed=9)
    assert same(weights(model), weights(other))
    assert again.param_groups is again.base.param_groups
    assert again.state is again.base.state


@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_a_checkpoint_of_a_self_driving_run_resumes_bit_for_bit(base):
    def drive(model, opt, n, seed):
        stream, loss = batches(seed), loss_of(model)
        for _ in range(n):
            batch = next(stream)
            opt.zero_grad()
            loss(batch).backward()
            opt.observe(loss, batch)
            opt.step()

    model = net()
    opt = infhess.Preconditioned(BASES[base](model.parameters()), rank=3)
    drive(model, opt, 30, 1)
    saved = through_a_file({"model": model.state_dict(), "opt": opt.state_dict()})
    other = net()
    other.load_state_dict(saved["model"])
    again = infhess.Preconditioned(BASES[base](other.parameters()), rank=3)
    again.load_state_dict(saved["opt"])
    drive(model, opt, 40, 9)
    drive(other, again, 40, 9)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_loading_ones_own_state_changes_nothing(base):
    _model, opt = armed(base)
    before = opt.preconditioner.dense()
    opt.load_state_dict(opt.state_dict())
    assert torch.equal(opt.preconditioner.dense(), before)


def test_hooks_on_checkpoints_see_everything():
    model, opt = armed("momentum")
    seen = []
    opt.register_state_dict_post_hook(lambda o, state: seen.append("curvature_basis" in state["state"][0]))
    opt.register_load_state_dict_pre_hook(lambda o, state: seen.append("curvature_basis" in state["state"][0]))
    opt.register_load_state_dict_post_hook(lambda o: seen.append(bool(o._numbers.armed)))
    opt.load_state_dict(opt.state_dict())
    assert seen == [True, True, True]
    reordered = infhess.Preconditioned(BASES["momentum"](list(net().parameters())[::-1]), rank=3)

    def turn(o, state):
        turned = {3 - i: entry for i, entry in state["state"].items()}
        return {**state, "state": turned}

    reordered.register_load_state_dict_pre_hook(turn)
    reordered.load_state_dict(opt.state_dict())
    last = reordered.param_groups[0]["params"][-1]
    assert torch.equal(reordered.state[last]["curvature_basis"], opt.state[model[0].weight]["curvature_basis"])


def test_groups_without_parameters_and_entries_of_no_parameter_are_kept():
    model = net()
    opt = infhess.Preconditioned(torch.optim.SGD([{"params": []}, {"params": model.parameters()}], lr=0.1), rank=2)
    opt.update(loss_of(model), batches())
    opt.state["note"] = 3
    state = opt.state_dict()
    opt.load_state_dict(state)
    assert opt.state["note"] == 3


def test_parameters_may_be_replaced():
    opt = infhess.Preconditioned(BASES["adam"](net().parameters()), rank=3)
    opt.param_groups[0]["params"][3] = nn.Parameter(torch.ones(2))
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    opt.step()
    assert len(opt.state_dict()["state"]) == 4


def test_a_checkpoint_of_the_bare_base_is_taken_and_nothing_learnt():
    model, opt = armed("adam")
    bare = torch.optim.Adam(model.parameters(), lr=0.01)
    steps(model, bare, 2)
    saved = through_a_file(bare.state_dict())
    opt.load_state_dict(copy.deepcopy(saved))
    assert torch.equal(opt.preconditioner.dense(), torch.eye(opt.preconditioner.shape[0]))
    other = copy.deepcopy(model)
    again = torch.optim.Adam(other.parameters(), lr=0.01)
    again.load_state_dict(saved)
    steps(model, opt, 3)
    steps(other, again, 3)
    assert same(weights(model), weights(other))


def test_a_checkpoint_of_another_rank_is_named_and_nothing_changes():
    _model, opt = armed(rank=3)
    before = opt.preconditioner.dense()
    other = infhess.Preconditioned(BASES["sgd"](net().parameters()), rank=5)
    with pytest.raises(ValueError, match="rank"):
        opt.load_state_dict(other.state_dict())
    assert torch.equal(opt.preconditioner.dense(), before)


@each_base
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_go_their_own_way(base, how):
    model, opt = armed(base)
    duplicate = copy.deepcopy if how == "deepcopy" else lambda pair: pickle.loads(pickle.dumps(pair))
    other, again = duplicate((model, opt))
    assert again.param_groups is again.base.param_groups
    assert again.state is again.base.state
    before = weights(model)
    steps(other, again, 2)
    assert same(before, weights(model))
    steps(model, opt, 2)
    assert same(weights(model), weights(other))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("base", ["sgd", "momentum", "adam"])
def test_distributed_checkpoints(base, flat):
    model, opt = armed(base)
    steps(model, opt, 2)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    saved = through_a_file(get_optimizer_state_dict(model, opt, options=options))
    other = net()
    other.load_state_dict(model.state_dict())
    again = infhess.Preconditioned(BASES[base](other.parameters()), rank=3)
    get_optimizer_state_dict(other, again, options=options)
    set_optimizer_state_dict(other, again, saved, options=options)
    steps(model, opt, 2)
    steps(other, again, 2)
    assert same(weights(model), weights(other))


def test_names_of_parameters_are_kept():
    model = net()
    opt = infhess.Preconditioned(torch.optim.SGD(model.named_parameters(), lr=0.1), rank=2)
    opt.update(loss_of(model), batches())
    state = opt.state_dict()
    assert state["param_groups"][0]["param_names"] == [name for name, _ in model.named_parameters()]
    opt.load_state_dict(state)


# ---- updates that fail


def test_an_update_that_fails_leaves_all_as_it_was():
    model, opt = armed()
    before, held = opt.preconditioner.dense(), weights(model)
    loss = loss_of(model)
    for bad, data, error, message in (
        (lambda batch: loss(batch) * float("nan"), batches(), ValueError, "NaN|finite"),
        (loss, [], ValueError, "empty"),
        (lambda batch: batch[0].sum(), batches(), ValueError, "depend"),
        (lambda batch: model(batch[0]), batches(), TypeError, "scalar"),
        ("loss", batches(), TypeError, "callable"),
        (loss, 3, TypeError, "iterable"),
        (loss, iter([next(batches())]), ValueError, "run dry"),
        (lambda batch: 0 * loss(batch), batches(), ValueError, "zero"),
    ):
        with pytest.raises(error, match=message):
            opt.update(bad, data)
        assert torch.equal(opt.preconditioner.dense(), before)
        assert same(held, weights(model))
    steps(model, opt, 2)
    assert not same(held, weights(model))


def test_a_parameter_that_changed_its_shape_is_named_and_training_goes_on():
    model, opt = armed()
    model[2] = nn.Linear(4, 2)  # not this one: the optimizer has the old
    bias = opt.param_groups[0]["params"][3]
    bias.data = torch.zeros(5)
    with pytest.raises(ValueError, match="shape"):
        opt.update(loss_of(model), batches())
    for p in opt.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    opt.step()
    assert bool((bias != 0).all())


def test_adagrad_may_be_estimated_before_its_first_step():
    model = net()
    opt = infhess.Preconditioned(torch.optim.Adagrad(model.parameters(), lr=0.1), rank=3)
    opt.update(loss_of(model), batches())
    before = value_of(model)
    steps(model, opt, 40)
    assert value_of(model) < before - 0.01


def test_observe_survives_bad_batches_and_a_gradient_of_zero():
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), rank=2)
    g = torch.Generator().manual_seed(0)

    def loss(x):
        return (x @ w).square().mean()

    notes = []
    for t in range(600):
        x = torch.randn(32, 2, generator=g, dtype=torch.float64)
        if t == 6:
            x = x * torch.nan
        opt.zero_grad()
        loss(x).backward()
        report = opt.observe(loss, x)
        notes += report.notes if report else ()
        if t != 6:
            opt.step()
        if t == 400:
            with torch.no_grad():
                w.zero_()
    assert float(w.detach().abs().max()) < 1e-30
    assert any("nothing was learnt" in note for note in notes)
