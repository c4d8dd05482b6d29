"""Products with a mini-batch Hessian, against finite differences and dense matrices."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import infhess
from infhess import GaussNewton, Hessian, infer
from nets import NETS, SEED, build, flat_gradient
from util import F64, close, randn


def finite_difference(model, loss, batch, s, eps=1e-5):
    """Fourth-order central difference of gradients, on a copy of the parameters."""
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    state = copy.deepcopy(model.state_dict())

    def at(c):
        nn.utils.vector_to_parameters(start + c * s, model.parameters())
        return flat_gradient(model, loss, batch)

    result = (8 * (at(eps) - at(-eps)) - (at(2 * eps) - at(-2 * eps))) / (12 * eps)
    model.load_state_dict(state)
    return result


@pytest.mark.parametrize("name", NETS)
def test_products_against_finite_differences(name):
    model, loss, batch = build(name)
    source = Hessian(loss, model.parameters(), [batch])
    s = randn(source.size, seed=3)
    s = s / s.norm()
    close(source.at(batch, SEED).product(s), finite_difference(model, loss, batch, s), 1e-5)
    close(source.at(batch, SEED).gradient(), flat_gradient(model, loss, batch), 1e-12)


def test_products_of_one_batch_share_a_mask_and_batches_do_not():
    model, loss, batch = build("dropout")
    source = Hessian(loss, model.parameters(), [batch])
    local, s = source.at(batch, 1), randn(source.size)
    close(local.product(s), local.product(s), atol=0.0)
    close(local.product(2 * s), 2 * local.product(s), 1e-12)
    assert not torch.equal(source.matvec(s), source.matvec(s))


def dense_hessian(model, loss, batch):
    source = Hessian(loss, model.parameters(), [batch])
    local = source.at(batch, SEED)
    return torch.stack([local.product(e) for e in torch.eye(source.size, dtype=F64)], 1)


def test_the_hessian_is_symmetric_and_linear():
    H = dense_hessian(*build("mlp"))
    close(H, H.mT, 1e-12)


def test_frozen_unused_and_linear_parameters():
    model, loss, batch = build("mlp")
    extra, linear = nn.Parameter(torch.ones(2, dtype=F64)), nn.Parameter(torch.ones(1, dtype=F64))
    model[0].weight.requires_grad_(False)
    source = Hessian(lambda b: loss(b) + linear.sum(), [*model.parameters(), extra, linear], [batch])
    y = source.matvec(torch.ones(source.size, dtype=F64))
    assert source.size == 43 + 3
    close(y[:20], torch.zeros(20), atol=0.0)
    close(y[-3:], torch.zeros(3), atol=0.0)
    assert float(y[20:43].norm()) > 0
    close(source.gradient()[-3:], torch.tensor([0.0, 0.0, 1.0]), 1e-12)
    only = Hessian(lambda b: b.sum() * linear.sum(), [linear], [batch[0]])
    close(only.matvec(torch.ones(1, dtype=F64)), torch.zeros(1), atol=0.0)


def test_several_dtypes_and_half_precision():
    a, b = nn.Linear(3, 4), nn.Linear(4, 1).double()
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    source = Hessian(lambda x: b(torch.tanh(a(x)).double()).square().mean(), [*a.parameters(), *b.parameters()], [x])
    assert source.matvec(torch.ones(source.size)).dtype == F64
    half = nn.Linear(3, 1).bfloat16()
    low = Hessian(lambda x: half(x).float().square().mean(), half.parameters(), [x.bfloat16()])
    y = low.matvec(torch.ones(4))
    assert y.dtype == torch.float32
    exact = Hessian(lambda x: half.float()(x).square().mean(), half.parameters(), [x])
    close(y, exact.matvec(torch.ones(4)), 0.05)


def test_autocast():
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(32, 3)

    def loss(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().square().mean()

    s = torch.ones(41)
    mixed = Hessian(loss, model.parameters(), [x]).matvec(s)
    close(mixed, Hessian(lambda x: model(x).square().mean(), model.parameters(), [x]).matvec(s), 0.1)


def test_finite_differences_on_request_and_by_name():
    bag = nn.EmbeddingBag(6, 3).double()
    x = torch.randint(6, (8, 4), generator=torch.Generator().manual_seed(0))
    loss = lambda x: torch.tanh(bag(x)).square().mean()  # noqa: E731
    with pytest.raises(infhess.DoubleBackwardError, match='products="difference"'):
        Hessian(loss, bag.parameters(), [x]).matvec(torch.ones(18))
    plain = lambda x: torch.tanh(bag.weight[x].mean(1)).square().mean()  # noqa: E731
    s = randn(18)
    close(
        Hessian(loss, bag.parameters(), [x], products="difference").matvec(s),
        Hessian(plain, bag.parameters(), [x]).matvec(s),
        1e-8,
    )


@pytest.mark.parametrize("name", ["mlp", "layernorm", "batchnorm", "dropout"])
def test_differences_agree_with_products_on_smooth_nets(name):
    model, loss, batch = build(name)
    s = randn(sum(p.numel() for p in model.parameters()))
    exact, difference = (Hessian(loss, model.parameters(), [batch], products=k) for k in ("exact", "difference"))
    close(difference.at(batch, SEED).product(s), exact.at(batch, SEED).product(s), 1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_compiled_model_gives_the_products_of_the_model():
    model, _, batch = build("batchnorm")
    compiled = torch.compile(model, backend="aot_eager")
    compiled(batch[0])
    before = copy.deepcopy(model.state_dict())
    s = randn(sum(p.numel() for p in model.parameters()))
    sources = [
        Hessian(lambda b, net=net: nn.functional.mse_loss(net(b[0]), b[1]), model.parameters(), [batch])
        for net in (model, compiled)
    ]
    close(sources[1].matvec(s), sources[0].matvec(s), 1e-12)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_counts_of_products_and_data_points():
    model, loss, (x, y) = build("mlp")
    batches = [(x[:3], y[:3]), (x[3:], y[3:])]
    source = Hessian(loss, model.parameters(), batches)
    source.matvec(torch.ones(43))
    assert (source.products, source.data_points) == (1, 3)
    source.gradient()
    assert (source.products, source.data_points) == (1, 8)
    source.product_and_gradient(torch.ones(43, dtype=F64))
    assert (source.products, source.data_points) == (2, 11)
    infer(Hessian(loss, model.parameters(), batches), 4)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda w, x: Hessian(3, [w], [x]), TypeError, "loss: expected a callable"),
        (lambda w, x: Hessian(lambda b: b.sum(), [], [x]), ValueError, "at least one parameter"),
        (lambda w, x: Hessian(lambda b: b.sum(), ["w"], [x]), TypeError, "params: expected tensors"),
        (lambda w, x: Hessian(lambda b: b.sum(), [w.detach()], [x]), ValueError, "requires a gradient"),
        (lambda w, x: Hessian(lambda b: b.sum(), [w], x), TypeError, "batches: expected an iterable of batches"),
        (lambda w, x: Hessian(lambda b: b.sum(), [w], 5), TypeError, "batches: expected an iterable"),
        (lambda w, x: Hessian(lambda b: b.sum(), [w], [x], products="fast"), ValueError, "products: expected"),
        (lambda w, x: Hessian(lambda b: w.sum(), [w], []).gradient(), ValueError, "empty iterable"),
        (lambda w, x: Hessian(lambda b: w.sum(), [w], ["x"]).gradient(), ValueError, "share dimension 0"),
        (lambda w, x: Hessian(lambda b: w.sum(), [w], [(x, x[:1])]).gradient(), ValueError, "share dimension 0"),
        (lambda w, x: Hessian(lambda b: w.sum(), [w], [x[:0]]).gradient(), ValueError, "empty batch"),
        (lambda w, x: Hessian(lambda b: b.sum(), [w], [x]).gradient(), ValueError, "does not depend on any parameter"),
        (lambda w, x: Hessian(lambda b: b @ w, [w], [x]).gradient(), TypeError, "expected a scalar tensor"),
        (lambda w, x: Hessian(lambda b: 3.0, [w], [x]).gradient(), TypeError, "got float"),
        (
            lambda w, x: Hessian(lambda b: w.sum(), [w], [x]).matvec(torch.ones(3)),
            ValueError,
            r"s: expected shape \(2,\)",
        ),
        (lambda w, x: GaussNewton(lambda x: x @ w, None, [w], [x]), TypeError, "loss: expected a callable"),
        (lambda w, x: GaussNewton(lambda x: x @ w, torch.sum, [w], [x]).gradient(), TypeError, "pairs"),
        (lambda w, x: GaussNewton(lambda x: (x,), torch.sum, [w], [(x, x)]).gradient(), TypeError, "one output tensor"),
        (lambda w, x: GaussNewton(lambda x: x, torch.sum, [w], [(x, x)]).gradient(), ValueError, "do not depend"),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make(torch.ones(2, dtype=F64, requires_grad=True), randn(4, 2))


@pytest.mark.parametrize("kind", ["norms", "checkpoint", "unbatchable", "unused"])
def test_blocks_of_products_are_their_columns(kind, g):
    class Unbatchable(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, y):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * y

    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 2)).double()
    extra = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def loss(x):
        f = checkpoint(model, x, use_reentrant=False) if kind == "checkpoint" else model(x)
        return (Unbatchable.apply(f) if kind == "unbatchable" else f.pow(3)).mean()

    params = [*model.parameters(), *([extra] if kind == "unused" else [])]
    x = torch.randn(16, 4, generator=g, dtype=torch.float64)
    source = infhess.Hessian(loss, params, [x])
    local = source.local(x)
    S = torch.randn(source.size, 19, generator=g, dtype=torch.float64)
    Y = source.block(local, S)
    state = torch.get_rng_state()
    torch.testing.assert_close(Y, torch.stack([local.product(s) for s in S.unbind(1)], 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert (source.products, source.product_points) == (19, 19 * 16)
    T = S.mT @ Y
    torch.testing.assert_close(T, T.mT)
