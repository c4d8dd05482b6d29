"""A compiled step is one graph, and does what the step does."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import infhess
from contract import BASES, MEASURED, armed, batches, loss_of, net, weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
STEPS = 60


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def trained(model, opt, *, compiled, spoil=(), backend="aot_eager"):
    """Weights after training; the gradients of steps in `spoil` are not finite."""
    step, stream = torch.compile(opt.step, backend=backend) if compiled else opt.step, batches(2)
    for i in range(STEPS):
        with opt.watch():
            opt.zero_grad()
            loss_of(model)(next(stream)).backward()
        if i in spoil:
            next(model.parameters()).grad.view(-1)[0] = torch.nan
        step()
    return torch.cat(
        [torch.view_as_real(w).flatten() if w.is_complex() else w.float().flatten() for w in weights(model)]
    )


def both(make, **options):
    """Weights after training with the step and with the compiled step, and the optimizers."""
    pairs = []
    for compiled in (False, True):
        model = net()
        opt = make(model)
        pairs.append((trained(model, opt, compiled=compiled, **options), opt))
    return zip(*pairs)


def one_graph(graphs=1):
    """Whether all compiled steps were one graph, which only steps that are not compiled interrupt."""
    breaks = counters["graph_break"]
    return (
        breaks
        and all("_uncompiled_step" in reason for reason in breaks)
        and counters["stats"]["unique_graphs"] == graphs
    )


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
@pytest.mark.parametrize("weight_decay", [None, 0.1])
def test_a_compiled_step_is_the_step_in_one_graph(scaling, weight_decay):
    ends, opts = both(lambda m: infhess.RateFree(m.parameters(), scaling=scaling, weight_decay=weight_decay))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    for p, q in zip(*(opt.state_dict()["state"].values() for opt in opts)):
        assert float(p["step"]) == float(q["step"])
        torch.testing.assert_close(p["exp_avg_sq"], q["exp_avg_sq"], rtol=1e-3, atol=1e-7)
        torch.testing.assert_close(p["numbers"], q["numbers"], rtol=1e-3, atol=1e-6)
    assert one_graph()


def test_a_quiet_step_compiles_as_a_whole():
    """`fullgraph=True` refuses any graph break."""
    model = net()
    opt = infhess.RateFree(model.parameters())
    trained(model, opt, compiled=True)
    whole, before = torch.compile(opt.step, backend="aot_eager", fullgraph=True), weights(model)
    assert not opt._probes
    with opt.watch():
        opt.zero_grad()
        loss_of(model)(next(batches(3))).backward()
    whole()
    assert all(not torch.equal(a, b) for a, b in zip(before, weights(model)))


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
def test_gradients_that_are_not_finite_are_skipped(scaling):
    ends, opts = both(lambda m: infhess.RateFree(m.parameters(), scaling=scaling), spoil=(30, 45))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    assert all(opt._rate_state.skipped == 2 or opt._rate_state.steps < STEPS for opt in opts)
    assert len({opt._rate_state.steps for opt in opts}) == 1
    assert one_graph()


def test_groups_and_maximizing():
    def make(model):
        first, *rest = model.parameters()
        groups = [{"params": [first], "lr": 0.5, "betas": (0.8, 0.9)}, {"params": rest, "weight_decay": 0.01}]
        return infhess.RateFree(groups)

    ends, _ = both(make)
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    assert one_graph()


def test_frozen_parameters_and_new_ones():
    """A parameter that begins to train does so in a step that is not compiled."""
    ends = []
    for compiled in (False, True):
        model = net()
        last = list(model.parameters())[-1].requires_grad_(False)
        opt = infhess.RateFree(model.parameters())
        step, stream = torch.compile(opt.step, backend="aot_eager") if compiled else opt.step, batches(2)
        for i in range(STEPS):
            last.requires_grad_(i >= STEPS // 2)
            with opt.watch():
                opt.zero_grad()
                loss_of(model)(next(stream)).backward()
            step()
        ends.append(torch.cat([w.flatten() for w in weights(model)]))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_half_precision_weights():
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(6, 1).to(torch.bfloat16)
        opt = infhess.RateFree(model.parameters())
        step, x = torch.compile(opt.step, backend="aot_eager") if compiled else opt.step, torch.randn(32, 6)
        for _ in range(STEPS):
            with opt.watch():
                opt.zero_grad()
                (model(x.bfloat16()).float() - x.sum(1, keepdim=True)).square().mean().backward()
            step()
        ends.append(torch.cat([own["averaged"].flatten() for own in opt.state.values()]))
    torch.testing.assert_close(*ends, rtol=2e-2, atol=1e-2)
    assert one_graph()


def test_two_optimizers_do_not_share_a_graph_s_decisions():
    """Each graph finds its own optimizer, also after a copy."""
    from copy import deepcopy

    model = net()
    opt = infhess.RateFree(model.parameters())
    trained(model, opt, compiled=True)
    other = deepcopy(opt)
    assert other._number != opt._number
    steps = opt._rate_state.steps, other._rate_state.steps
    with other.watch():
        for group in other.param_groups:
            sum(p.square().sum() for p in group["params"]).backward()
    torch.compile(other.step, backend="aot_eager")()
    assert (opt._rate_state.steps, other._rate_state.steps) == (steps[0], steps[1] + 1)


# ---- Preconditioned


def plain(model, opt, *, compiled, steps=8, spoil=(5,), after=lambda i: None):
    """Weights after steps without `watch`; the gradients of steps in `spoil` are not finite."""
    step, stream = torch.compile(opt.step, backend="aot_eager") if compiled else opt.step, batches(2)
    for i in range(steps):
        opt.zero_grad()
        loss_of(model)(next(stream)).backward()
        if i in spoil:
            next(model.parameters()).grad.view(-1)[0] = torch.nan
        given = [p.grad.clone() for p in model.parameters()]
        step()
        assert all(torch.equal(p.grad, g) or i in spoil for p, g in zip(model.parameters(), given))
        after(i)
    return torch.cat([w.flatten() for w in weights(model)])


def options(opt):
    return [{name: value for name, value in group.items() if name != "params"} for group in opt.param_groups]


@pytest.mark.parametrize("base", [name for name in BASES if name != "adafactor"])  # reads numbers itself
@pytest.mark.parametrize("blocks", ["whole", "layer"])
def test_a_compiled_step_of_each_base_is_one_graph(base, blocks):
    ends = []
    for compiled in (False, True):
        model, opt = armed(base, blocks=blocks)
        before = options(opt)
        ends.append(plain(model, opt, compiled=compiled))
        assert options(opt) == before
        assert opt._state.skipped == 1
    torch.testing.assert_close(*ends, rtol=1e-4, atol=2e-5)
    assert one_graph()


@pytest.mark.parametrize("base", MEASURED)
def test_a_watched_loop_compiles(base):
    """The learning rate changes at every step, and does not cause another graph."""
    ends, opts = both(lambda m: infhess.Preconditioned(BASES[base](m.parameters())), spoil=(30,))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)
    steps, compiled_steps = (opt._state.steps for opt in opts)
    assert steps == compiled_steps
    assert one_graph()


@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_an_observed_net_compiles(base):
    ends = []
    for compiled in (False, True):
        model = net()
        opt = infhess.Preconditioned(BASES[base](model.parameters()), blocks="layer")
        step, stream = torch.compile(opt.step, backend="aot_eager") if compiled else opt.step, batches(2)
        for _ in range(STEPS):
            batch = next(stream)
            opt.zero_grad()
            loss_of(model)(batch).backward()
            opt.observe(loss_of(model), batch)
            step()
        ends.append(torch.cat([w.flatten() for w in weights(model)]))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)
    assert one_graph()


def test_a_batch_that_was_dropped_does_not_keep_steps_uncompiled():
    model, stream = net(), batches(2)
    opt = infhess.Preconditioned(BASES["sgd"](model.parameters()))
    for drop in (False, True):
        with opt.watch():
            opt.zero_grad()
            loss_of(model)(next(stream)).backward()
        assert opt._probes
        if drop:
            next(model.parameters()).grad.view(-1)[0] = torch.nan
            opt.zero_grad()
        else:
            opt.step()
        assert not opt._probes


def test_observed_convex_losses_step_uncompiled():
    """Their momentum falls from step to step."""
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, x = nn.Linear(6, 1), torch.randn(300, 6)
        opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=1.0))
        step = torch.compile(opt.step, backend="aot_eager") if compiled else opt.step
        for i in range(STEPS):
            batch = x[5 * i % 250 :][:50]
            opt.zero_grad()

            def loss(b, model=model):
                return (model(b) - b.sum(1, keepdim=True)).square().mean()

            loss(batch).backward()
            opt.observe(loss, batch)
            step()
        ends.append(torch.cat([w.flatten() for w in weights(model)]))
    torch.testing.assert_close(*ends)
    assert counters["stats"]["unique_graphs"] == 0


@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_a_schedule_does_not_compile_each_step_anew(base):
    ends = []
    for compiled in (False, True):
        model, opt = armed(base)
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.95)
        ends.append(plain(model, opt, compiled=compiled, steps=20, spoil=(), after=lambda i, s=schedule: s.step()))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= 2  # the compiler takes a number that changes once for a variable


@pytest.mark.parametrize("base", ["sgd", "momentum", "adam"])
def test_the_limit_of_a_step_holds_in_a_graph(base):
    ends = []
    for compiled in (False, True):
        model, opt = armed(base)
        opt._state.limit = 1e-4
        last = [weights(model)]

        def check(i, last=last, model=model):
            moved = torch.cat([(a - b).flatten() for a, b in zip(last[0], weights(model))]).norm()
            assert base == "momentum" or moved < 1.01e-4
            last[0] = weights(model)

        ends.append(plain(model, opt, compiled=compiled, spoil=(), after=check))
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)
    assert one_graph()


def test_a_quiet_step_of_preconditioned_compiles_as_a_whole():
    model, opt = armed("momentum")
    plain(model, opt, compiled=True, steps=2, spoil=())
    whole, before = torch.compile(opt.step, backend="aot_eager", fullgraph=True), weights(model)
    loss_of(model)(next(batches(3))).backward()
    whole()
    assert all(not torch.equal(a, b) for a, b in zip(before, weights(model)))


def test_double_precision_and_complex_weights():
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        w = nn.Parameter(torch.randn(4, dtype=torch.complex128))
        v = nn.Parameter(torch.randn(3, dtype=torch.float64))
        opt = infhess.Preconditioned(torch.optim.SGD([w, v], lr=0.1), rank=2)
        step = torch.compile(opt.step, backend="aot_eager") if compiled else opt.step
        x = torch.randn(20, 4, dtype=torch.float64)

        def loss(b, w=w, v=v):
            scaled = (b * b.new_tensor([9.0, 3.0, 1.0, 1.0])).to(w.dtype)
            return (scaled @ w - 1).abs().square().mean() + (b[:, :3] @ v).square().mean()

        opt.update(loss, [x] * 20)
        for _ in range(8):
            opt.zero_grad()
            loss(x).backward()
            step()
        ends.append(torch.cat([torch.view_as_real(w.detach()).flatten(), v.detach()]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


def test_the_host_is_asked_at_each_step_also_with_cuda_graphs():
    """A recorded CUDA graph would repeat the decisions of the step that was recorded."""
    ops = [torch.ops.infhess.decide, torch.ops.infhess.learn, torch.ops.infhess.shrink]
    assert all(torch.Tag.cudagraph_unsafe in op.default.tags for op in ops)
