"""RateFree with the rotated scaling: it does not see rotations, goes on from checkpoints, and takes any kind of parameter."""

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import infhess
from infhess.optim.scalings import SCALINGS, rotated
from infhess.optim.scalings.gradient_scaling import Gradients
from rate_free_cases import F64, data, flat, loss_of, small_net, train
from util import close, orthogonal, randn


def rate_free(params, **options):
    return infhess.RateFree(params, scaling="kronecker", **options)


def run(opt, loss, batches, steps, start=0):
    for i in range(start, start + steps):
        batch = batches[i % len(batches)]
        opt.zero_grad()
        loss(batch).backward()
        opt.observe(loss, batch)
        opt.step()


def test_it_trains_a_net_and_the_first_step_does_not_move():
    model = small_net()
    opt, before = rate_free(model.parameters()), flat(small_net())
    train(model, opt, 1)
    assert torch.equal(flat(model), before)
    assert math.isnan(float(opt.rate))
    train(model, opt, 400)
    with opt.averaged(), torch.no_grad():
        assert float(loss_of(model)(data())) < 0.1 * float(loss_of(small_net())(data()))


def test_rotating_what_goes_into_a_layer_and_comes_out_of_it_changes_nothing(monkeypatch):
    """y = V f(W x): with W′ = P W Q and V′ = V Pᵀ for orthogonal P and Q, and x′ = Qᵀ x, all weights stay in step."""
    monkeypatch.setattr(
        rotated, "TILT", 0.0
    )  # it orders directions that a gradient says nothing of; there are none here
    P, Q, x = orthogonal(4, seed=1), orthogonal(4, seed=2), randn(64, 4)
    target = (x @ randn(4, 4, seed=5)).sin() @ randn(4, 4, seed=6)
    found = []
    for left, right in ((torch.eye(4, dtype=F64), torch.eye(4, dtype=F64)), (P, Q)):
        first = nn.Parameter(left @ randn(4, 4, seed=3) @ right)
        last = nn.Parameter(randn(4, 4, seed=4) @ left.T)
        loss = lambda b, f=first, l=last, r=right: (b[0] @ r @ f.T @ l.T - b[1]).square().mean()  # noqa: E731
        opt = rate_free([first, last])
        run(opt, loss, [(x[i : i + 16], target[i : i + 16]) for i in range(0, 64, 16)], 25)
        found.append((left.T @ first.detach() @ right.T, last.detach() @ left, float(opt.rate)))
    close(found[1][0], found[0][0], 1e-8)
    close(found[1][1], found[0][1], 1e-8)
    assert found[1][2] == pytest.approx(found[0][2], rel=1e-8)


@pytest.mark.parametrize("dtype", [F64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [1, 10])
def test_a_checkpoint_goes_on_bit_for_bit(dtype, steps):
    model, stream = small_net(dtype=dtype), torch.Generator().manual_seed(7)
    opt = rate_free(model.parameters())
    train(model, opt, steps, stream=stream)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    place = stream.get_state()
    train(model, opt, 30, stream=stream)
    file.seek(0)
    saved, other = torch.load(file, weights_only=True), small_net(seed=3, dtype=dtype)
    again = rate_free(other.parameters())
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    stream.set_state(place)
    train(other, again, 30, stream=stream)
    assert torch.equal(flat(model), flat(other))
    assert float(opt.rate) == float(again.rate)


def test_a_checkpoint_of_the_other_scaling_is_refused_and_nothing_changes():
    nets = {name: small_net() for name in SCALINGS}
    opts = {name: infhess.RateFree(net.parameters(), scaling=name) for name, net in nets.items()}
    for name, opt in opts.items():
        train(nets[name], opt, 3)
    for name, other in (("kronecker", "diagonal"), ("diagonal", "kronecker")):
        before = flat(nets[name]).clone()
        with pytest.raises(ValueError, match=f'expected .* scaling="{name}", got "{other}"; load it into'):
            opts[name].load_state_dict(opts[other].state_dict())
        train(nets[name], opts[name], 1)
        assert not torch.equal(flat(nets[name]), before)


def test_a_basis_of_another_shape_is_refused():
    model = small_net()
    opt = rate_free(model.parameters())
    train(model, opt, 3)
    wrong = copy.deepcopy(opt.state_dict())
    wrong["state"][0]["right_basis"] = torch.zeros(1, 3, 3)
    with pytest.raises(ValueError, match=r"right_basis of parameter 0 has shape \(1, 3, 3\), expected \(1, 4, 4\)"):
        opt.load_state_dict(wrong)


def test_an_unknown_scaling_is_named():
    with pytest.raises(ValueError, match="scaling: expected one of diagonal, kronecker; got 'rotated'"):
        infhess.RateFree([nn.Parameter(torch.ones(1))], scaling="rotated")


class Kinds(nn.Module):
    """Embedding tied to the output, convolution, low-rank factors, sides of 1, vector, scalar, complex, frozen, unused."""

    def __init__(self):
        super().__init__()
        self.table, self.conv = nn.Embedding(50, 6), nn.Conv1d(6, 6, 3, padding=1)
        self.a, self.b = nn.Parameter(0.3 * torch.randn(2, 6)), nn.Parameter(torch.zeros(6, 2))
        self.row, self.column = nn.Parameter(torch.randn(1, 6)), nn.Parameter(torch.randn(6, 1))
        self.shift, self.scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.ones(()))
        self.phase = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))
        self.frozen = nn.Parameter(torch.randn(6, 6), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3, 3))

    def forward(self, codes):
        x = self.conv(self.table(codes).mT).mT
        x = x @ (self.a.T @ self.b.T) + self.row * (x @ self.column).tanh() + (x @ self.frozen).tanh()
        x = (x.to(torch.complex64) @ self.phase).abs() * self.scale + self.shift
        return functional.linear(x, self.table.weight)


def sequences():
    return [torch.randint(50, (8, 5), generator=torch.Generator().manual_seed(i)) for i in range(4)]


def kinds(seed=0):
    torch.manual_seed(seed)
    model = Kinds()
    loss = lambda b: functional.cross_entropy(model(b)[:, :-1].flatten(0, 1), b[:, 1:].flatten())  # noqa: E731
    return model, rate_free([p for p in model.parameters() if p.requires_grad]), loss


@pytest.mark.parametrize("block", [1024, 4])
def test_every_kind_of_parameter_trains(monkeypatch, block):
    monkeypatch.setattr(rotated, "BLOCK", block)
    (model, opt, loss), batches = kinds(), sequences()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    start = loss(batches[0]).item()
    run(opt, loss, batches, 120)
    opt.finish()
    assert loss(batches[0]).item() < 0.7 * start
    for name, p in model.named_parameters():
        assert torch.isfinite(torch.view_as_real(p) if p.is_complex() else p).all()
        assert torch.equal(p, before[name]) is (name in ("frozen", "unused")), name


def test_a_checkpoint_of_every_kind_of_parameter_goes_on_bit_for_bit():
    (model, opt, loss), batches = kinds(), sequences()
    run(opt, loss, batches, 22)
    (other, again, same), file = kinds(seed=1), io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    run(opt, loss, batches, 12, start=22)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["opt"])
    run(again, same, batches, 12, start=22)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters()))


def test_rows_of_an_embedding_wait_for_their_first_word_and_then_learn():
    """Without decay, which is of whole matrices, a row that no batch has seen stays bit for bit.

    Its first gradient moves it by 1/√(1 − β₂) usual steps at the most.
    """
    torch.manual_seed(0)
    table, goal = nn.Embedding(1100, 6), torch.randn(1100, 6)
    opt, late = rate_free(table.parameters(), weight_decay=0.0), 1099
    loss = lambda codes: (table(codes) - goal[codes]).square().mean()  # noqa: E731
    often = [torch.randint(20, (16,), generator=torch.Generator().manual_seed(i)) for i in range(30)]
    before = table.weight.detach().clone()
    run(opt, loss, often, 30)
    assert torch.equal(table.weight[20:].detach(), before[20:])
    z = opt.state[table.weight]["z"][late].clone()
    run(opt, loss, [torch.cat([often[0], torch.tensor([late])])], 1)
    moved = opt.state[table.weight]["z"][late] - z
    assert 0 < float(moved.norm()) <= 6**0.5 * float(opt.rate) / math.sqrt(1 - 0.99)
    run(opt, loss, [torch.cat([often[0], torch.tensor([late])])], 60)
    after = table.weight.detach()[late]
    assert float((after - goal[late]).norm()) < 0.3 * float((before[late] - goal[late]).norm())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_state_in_single(dtype):
    w, x = nn.Parameter(randn(4, 6, dtype=dtype)), randn(32, 6, dtype=torch.float32)
    opt, loss = rate_free([w]), lambda b: (b @ (w.float() - 1).T).square().mean()
    start = loss(x).item()
    run(opt, loss, [x], 200)
    own = opt.state[w]
    assert {own[name].dtype for name in ("z", "exp_avg_sq", "left", "right_basis")} == {torch.float32}
    opt.finish()
    assert loss(x).item() < 0.1 * start


@pytest.mark.parametrize("block", [1024, 2])
def test_strides_do_not_matter(monkeypatch, block):
    """A transposed matrix and a convolution whose channels come last train as the contiguous ones do."""
    monkeypatch.setattr(rotated, "BLOCK", block)
    x, found = randn(16, 4, 5, 5), []
    for turned in (False, True):
        kernel, dense = randn(6, 4, 3, 3, seed=1), randn(2, 6, seed=2)
        kernel = nn.Parameter(kernel.to(memory_format=torch.channels_last) if turned else kernel)
        dense = nn.Parameter(dense.T.contiguous().T if turned else dense)
        assert dense.is_contiguous() is kernel.is_contiguous() is not turned
        loss = lambda b, k=kernel, d=dense: (functional.conv2d(b, k).tanh().mean((2, 3)) @ d.T - 1).square().mean()  # noqa: E731
        run(rate_free([kernel, dense]), loss, [x], 25)
        found.append(torch.cat([kernel.detach().reshape(-1), dense.detach().reshape(-1)]))
    close(found[1], found[0], 1e-6)


def test_groups_have_betas_of_their_own_and_late_ones_begin_with_bases():
    first, late, x = nn.Parameter(randn(3, 3)), nn.Parameter(randn(3, 3, seed=1)), randn(16, 3)
    loss = lambda b: (b @ (first - 1)).square().mean() + (b @ (late - 1)).square().mean()  # noqa: E731
    opt, twin = rate_free([{"params": [first], "betas": (0.9, 0.5)}]), late.detach().clone()
    run(opt, loss, [x], 30)
    opt.add_param_group({"params": [late]})
    assert [group["betas"] for group in opt.param_groups] == [(0.9, 0.5), (0.9, 0.99)]
    run(opt, loss, [x], 1)
    assert torch.equal(late.detach(), twin)
    run(opt, loss, [x], 300)
    opt.finish()
    assert float((late.detach() - 1).abs().max()) < 0.1


@pytest.mark.filterwarnings("ignore:.*exactly zero")
def test_gradients_of_zero_come_to_nothing_and_do_not_freeze_it():
    w, x = nn.Parameter(randn(3, 3, dtype=torch.float32)), randn(16, 3, dtype=torch.float32)
    opt, loss, start = rate_free([w]), lambda b: (b @ (w - 1)).square().mean(), w.detach().clone()
    first = loss(x).item()
    for i in range(300):
        opt.zero_grad()
        (loss(x) * (i > 3 and not 20 < i < 60)).backward()
        opt.observe(loss, x)
        opt.step()
        if i <= 4:
            assert torch.equal(w.detach(), start)
    opt.finish()
    assert loss(x).item() < 1e-2 * first


def test_a_gradient_that_is_not_finite_leaves_the_bases_as_they_are():
    model = small_net()
    opt = rate_free(model.parameters())
    for steps in (0, 3):
        train(model, opt, steps)
        before, weights = copy.deepcopy(opt.state_dict()["state"]), flat(model).clone()
        opt.zero_grad()
        loss_of(model)(data()).backward()
        opt.observe(loss_of(model), data())
        model[0].weight.grad[0, 0] = math.nan
        opt.step()
        assert torch.equal(flat(model), weights)
        after = opt.state_dict()["state"]
        assert all(torch.equal(before[i][k], after[i][k]) for i in before for k in before[i] if k != "numbers")


def test_the_loss_in_other_units_gives_the_same_weights():
    found = []
    for scale in (1.0, 2.0**40):
        model = small_net()
        train(model, rate_free(model.parameters()), 40, loss=loss_of(model, scale))
        found.append(flat(model))
    close(found[1], found[0], 1e-6)


def test_nothing_is_done_between_refreshes_but_four_products_per_matrix(monkeypatch):
    """Statistics are taken ever more rarely, and bases refreshed ever more rarely: counted by calls."""
    calls = {"gather": 0, "refresh": 0}
    for name, function in (("gather", rotated._gather), ("refresh", rotated.refresh)):
        monkeypatch.setattr(rotated, "_gather" if name == "gather" else name, _counted(calls, name, function))
    scaling, g = SCALINGS["kronecker"], randn(3, 4)
    own = {"step": torch.zeros(()), **scaling.fresh(g)}
    for step in range(3000):
        scaling.directions(Gradients([own], [float(step)], [g], 0.99, 1e-3))
    assert calls["refresh"] < 50
    assert calls["gather"] < 700


def _counted(calls, name, function):
    def counted(*args):
        calls[name] += 1
        return function(*args)

    return counted
