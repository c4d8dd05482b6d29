"""A compiled step is one graph, and does what the step does, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from textwrap import dedent

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import infhess
from contract import BASES, MEASURED, active, batches, each_base, loss_of, net, same, weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
STEPS = 40


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def compiled(step, backend="aot_eager"):
    """The step as a whole graph: any break is an error."""
    return torch.compile(step, backend=backend, fullgraph=True)


def trained(model, opt, step, *, spoil=(), spare=()):
    """Weights after training; gradients of steps in `spoil` are not finite, and in `spare` the first parameter has none."""
    stream = batches(2)
    for i in range(STEPS):
        with opt.watch():
            opt.zero_grad()
            loss_of(model)(next(stream)).backward()
        first = next(model.parameters())
        if i in spoil:
            first.grad.view(-1)[0] = torch.nan
        if i in spare:
            first.grad = None
        given = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        step()
        for p, g in zip(model.parameters(), given, strict=True):
            assert (p.grad is None) if g is None else torch.equal(p.grad.nan_to_num(), g.nan_to_num())
    return weights(model)


def check_same(make, backend="aot_eager", **options):
    """Train with the step and with the compiled step: weights and state are equal."""
    found = []
    for wrap in (lambda step: step, lambda step: compiled(step, backend)):
        model = net()
        opt = make(model)
        found.append((trained(model, opt, wrap(opt.step), **options), opt))
    (plain, opt), (ours, other) = found
    assert same(plain, ours)
    states = [opt.state_dict()["state"], other.state_dict()["state"]]
    for a, b in zip(*(entry.values() for entry in states), strict=True):
        for key, value in a.items():
            assert torch.equal(torch.as_tensor(value).nan_to_num(), torch.as_tensor(b[key]).nan_to_num()), key
    return opt, other


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
@pytest.mark.parametrize("weight_decay", [None, 0.1])
def test_all_steps_of_rate_free_are_one_graph(scaling, weight_decay):
    """First steps and steps that probe curvature, too."""
    opt, other = check_same(
        lambda m: infhess.RateFree(m.parameters(), scaling=scaling, weight_decay=weight_decay), spoil=(30,)
    )
    assert opt.report is not None
    assert opt.rate == other.rate
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
def test_other_compilers(backend, scaling):
    """They hand over the parameters themselves, and inductor turns off more of PyTorch's dispatch than others."""
    check_same(lambda m: infhess.RateFree(m.parameters(), scaling=scaling), backend)


def test_a_parameter_without_a_gradient_stays_as_it_is():
    check_same(lambda m: infhess.RateFree(m.parameters()), spare=(10, 11, 25))


def test_groups_with_options_of_their_own():
    def make(model):
        first, *rest = model.parameters()
        groups = [{"params": [first], "lr": 0.5, "betas": (0.8, 0.9)}, {"params": rest, "weight_decay": 0.01}]
        return infhess.RateFree(groups)

    check_same(make)


@pytest.mark.parametrize("base", MEASURED)
def test_watched_steps_of_preconditioned(base):
    check_same(lambda m: infhess.Preconditioned(BASES[base](m.parameters())), spoil=(30,))


@each_base
@pytest.mark.parametrize("blocks", ["whole", "layer"])
def test_steps_with_directions(base, blocks):
    """Around each base of torch: its step is the same, and `due` sees it."""
    ends = []
    for wrap in (lambda step: step, compiled):
        model, opt = active(base, blocks=blocks)
        step, stream = wrap(opt.step), batches(2)
        for _ in range(6):
            opt.zero_grad()
            loss_of(model)(next(stream)).backward()
            step()
        ends.append((weights(model), len(opt._preconditioner_state.drift._seen)))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1] > 0


def test_a_schedule_does_not_compile_each_step_anew():
    """PyTorch's schedulers replace `step` by one that its compiler does not trace; the graph begins within."""
    model, opt = active("adamw")
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.95)
    step, stream = torch.compile(opt.step, backend="aot_eager"), batches(2)
    for _ in range(10):
        opt.zero_grad()
        loss_of(model)(next(stream)).backward()
        step()
        schedule.step()
    assert counters["stats"]["unique_graphs"] <= 2  # the compiler takes a number that changes once for a variable


def test_observed_convex_losses():
    ends = []
    for wrap in (lambda step: step, compiled):
        torch.manual_seed(0)
        model, x = nn.Linear(6, 1), torch.randn(300, 6)
        opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=1.0))
        step = wrap(opt.step)

        def loss(b, model=model):
            return (model(b) - b.sum(1, keepdim=True)).square().mean()

        for i in range(STEPS):
            batch = x[5 * i % 250 :][:50]
            opt.zero_grad()
            loss(batch).backward()
            opt.observe(loss, batch)
            step()
        ends.append(weights(model))
    assert same(*ends)


def test_a_probe_within_the_graph_may_differentiate_the_loss_again():
    """Gradients that were clipped after `observe` are probed again, on micro-batches whose graphs were not kept."""
    ends = []
    for wrap in (lambda step: step, lambda step: compiled(step, "inductor")):
        model, stream = net(), batches(2)
        opt = infhess.RateFree(model.parameters())
        step = wrap(opt.step)
        for _ in range(12):
            pair = [next(stream) for _ in range(2)]
            opt.zero_grad()
            for batch in pair:
                loss_of(model)(batch).backward()
                opt.observe(loss_of(model), batch)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            step()
        ends.append((weights(model), opt.rate))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_graph_that_changes_weights_around_the_step(backend):
    """Weights that the graph has changed before the step are those that the step finds, and what follows sees the step."""

    def around(opt, model):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.5)
        opt.step()
        return [p.detach() + 1 for p in model.parameters()]

    ends = []
    for wrap in (lambda f: f, lambda f: compiled(f, backend)):
        model, opt = active()
        loss_of(model)(next(batches(2))).backward()
        after = wrap(lambda opt=opt, model=model: around(opt, model))()
        ends.append((weights(model), after))
    assert all(same(a, b) for a, b in zip(*ends, strict=True))
    assert same([w + 1 for w in ends[1][0]], ends[1][1])


def test_hooks_run_once_a_step():
    model, opt = active()
    calls = []
    opt.register_step_pre_hook(lambda *_: calls.append("before"))
    opt.register_step_post_hook(lambda *_: calls.append("after"))
    loss_of(model)(next(batches(2))).backward()
    compiled(opt.step)()
    assert calls == ["before", "after"]


@pytest.mark.parametrize("scaling", ["diagonal", "kronecker"])
def test_closures_run_outside_of_the_graph(scaling):
    ends = []
    for wrap in (lambda step: step, lambda step: torch.compile(step, backend="aot_eager")):
        model, stream = net(), batches(2)
        opt = infhess.RateFree(model.parameters(), scaling=scaling)
        step = wrap(opt.step)

        def closure(model=model, opt=opt, stream=stream):
            opt.zero_grad()
            loss = loss_of(model)(next(stream))
            loss.backward()
            return loss

        losses = [float(step(closure).detach()) for _ in range(12)]
        ends.append((weights(model), losses))
    assert same(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


@pytest.mark.parametrize("mode", ["torch.inference_mode()", "torch.autocast('cpu')"])
def test_importing_infhess_within_a_mode_does_not_make_it_stay_on(mode):
    code = f"""
        import torch
        with {mode}:
            import infhess.optim
        from infhess.optim.graph_step import _OUTSIDE
        print(_OUTSIDE[0] == torch._C._dispatch_tls_local_include_set())
        print(_OUTSIDE[1] == torch._C._dispatch_tls_local_exclude_set())
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_copies_have_graphs_of_their_own():
    model = net()
    opt = infhess.RateFree(model.parameters())
    trained(model, opt, compiled(opt.step))
    other = deepcopy(opt)
    assert other._number != opt._number
    steps = opt._rate_state.steps, other._rate_state.steps
    with other.watch():
        sum(p.square().sum() for p in other._params()).backward()
    compiled(other.step)()
    assert (opt._rate_state.steps, other._rate_state.steps) == (steps[0], steps[1] + 1)


def test_half_precision_and_complex_weights():
    ends = []
    for wrap in (lambda step: step, compiled):
        torch.manual_seed(0)
        w = nn.Parameter(torch.randn(4, dtype=torch.complex128))
        v = nn.Parameter(torch.randn(3).to(torch.bfloat16))
        opt = infhess.Preconditioned(torch.optim.SGD([w, v], lr=0.1), rank=2)
        step, x = wrap(opt.step), torch.randn(20, 4, dtype=torch.float64)

        def loss(b, w=w, v=v):
            scaled = (b * b.new_tensor([9.0, 3.0, 1.0, 1.0])).to(w.dtype)
            return (scaled @ w - 1).abs().square().mean() + (b[:, :3].bfloat16() @ v).float().square().mean()

        opt.update(loss, [x] * 20)
        for _ in range(8):
            opt.zero_grad()
            loss(x).backward()
            step()
        ends.append([w.detach(), v.detach()])
    assert same(*ends)


def test_the_host_is_asked_at_each_step_also_with_cuda_graphs():
    """A recorded CUDA graph would repeat the decisions of the step that was recorded."""
    assert torch.Tag.cudagraph_unsafe in torch.ops.infhess.step.default.tags
