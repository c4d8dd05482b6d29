"""Products where a model is awkward: weight norm, checkpoints, sparse gradients, parameters frozen later."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import infhess
from infhess import Hessian
from small_data import problem
from util import F64, close, randn


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_weight_norm_differentiates_twice(norm):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3)).double()
    data = (randn(16, 6), randn(16, 3, seed=1))
    loss = lambda b: nn.functional.mse_loss(net(b[0]), b[1])  # noqa: E731
    exact, difference = (Hessian(loss, net.parameters(), [data], products=p) for p in ("exact", "difference"))
    s = randn(exact.size)
    close(exact.matvec(s), difference.matvec(s), 1e-7)


def test_checkpoints():
    inner, w = nn.Linear(8, 8).double(), torch.ones(8, dtype=F64, requires_grad=True)
    data = [problem(32)[2]]
    plain = Hessian(lambda b: (torch.tanh(inner(b[0])) @ w).square().mean(), [*inner.parameters(), w], data)
    checked = Hessian(
        lambda b: (torch.tanh(checkpoint(inner, b[0], use_reentrant=False)) @ w).square().mean(),
        [*inner.parameters(), w],
        data,
    )
    s = randn(80)
    close(checked.matvec(s), plain.matvec(s), 1e-10)
    reentrant = Hessian(
        lambda b: (torch.tanh(checkpoint(inner, b[0].requires_grad_(), use_reentrant=True)) @ w).square().mean(),
        list(inner.parameters()),
        data,
    )
    with pytest.raises(infhess.DoubleBackwardError, match="use_reentrant=False"):
        reentrant.matvec(torch.ones(72))


def test_sparse_gradients_are_densified_for_differences():
    table = nn.Embedding(5, 3, sparse=True).double()
    x = torch.tensor([0, 1, 2, 3])
    dense = nn.Embedding(5, 3).double()
    dense.load_state_dict(table.state_dict())
    loss = lambda net: lambda x: torch.tanh(net(x)).square().mean()  # noqa: E731
    s = randn(15)
    expected = Hessian(loss(dense), dense.parameters(), [x]).matvec(s)
    close(Hessian(loss(table), table.parameters(), [x], products="difference").matvec(s), expected, 1e-6)


def test_freezing_after_construction():
    loss, w, data, _ = problem(32)
    v = torch.ones(2, dtype=F64, requires_grad=True)
    source = Hessian(lambda b: loss(b) + v.square().sum(), [w, v], [data])
    full = source.matvec(torch.ones(10))
    v.requires_grad_(False)
    close(source.matvec(torch.ones(10)), torch.cat([full[:8], torch.zeros(2)]), 1e-12)
    v.requires_grad_(True)
    close(source.matvec(torch.ones(10)), full, 1e-12)


def test_a_refused_vector_costs_nothing_and_numpy_is_taken():
    loss, w, data, _ = problem(32)
    source = Hessian(loss, [w], [data])
    for bad in (torch.ones(3), torch.ones(8, dtype=torch.complex64), "s", torch.ones(8, 2)):
        with pytest.raises((ValueError, TypeError)):
            source.matvec(bad)
    assert (source.products, source.data_points) == (0, 0)
    close(source.matvec(torch.ones(8).numpy()), source.matvec(torch.ones(8)), 1e-12)


class Square(torch.autograd.Function):
    """x ↦ x², marked as not to be differentiated twice."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def test_a_function_that_is_differentiable_once_is_refused_not_taken_for_flat():
    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    loss = lambda b: (b * Square.apply(w)).mean()  # noqa: E731
    with pytest.raises(infhess.DoubleBackwardError, match="Square is once_differentiable"):
        infhess.Hessian(loss, [w], [torch.ones(3, 2)]).matvec(torch.ones(2))
    close = infhess.Hessian(loss, [w], [torch.ones(3, 2)], products="difference").matvec(torch.ones(2))
    torch.testing.assert_close(close, torch.ones(2, dtype=torch.float64), rtol=1e-6, atol=1e-8)
