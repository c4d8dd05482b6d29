"""Products of one batch: differences in any precision, and losses that autograd.grad refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from infhess import DoubleBackwardError, GaussNewton, Hessian
from util import F64, close, randn

SINGLE = torch.float32


# ---- differences


def net(kind):
    torch.manual_seed(0)
    if kind == "logistic":
        return nn.Linear(20, 5)
    return nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))


X, Y = randn(256, 20, dtype=SINGLE), torch.randint(5, (256,), generator=torch.Generator().manual_seed(0))


def exact(model, v):
    """The product in double precision."""
    double = copy.deepcopy(model).double()
    loss = lambda b: nn.functional.cross_entropy(double(b[0].double()), b[1])  # noqa: E731
    return Hessian(loss, double.parameters(), [(X, Y)]).matvec(v.double())


def vector(model, seed=1):
    return randn(sum(p.numel() for p in model.parameters()), seed=seed, dtype=SINGLE)


def relative_error(a, b):
    return float(torch.linalg.vector_norm(a.double() - b) / torch.linalg.vector_norm(b))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.05), (torch.float16, 0.02)], ids=str)
@pytest.mark.parametrize("kind", ["logistic", "net"])
def test_differences_of_a_loss_that_autocasts(kind, dtype, most, seed):
    model = net(kind)
    v = vector(model, seed)

    def loss(b):
        with torch.autocast("cpu", dtype=dtype):
            out = model(b[0])
        assert out.dtype == dtype
        return nn.functional.cross_entropy(out.float(), b[1])

    source = Hessian(loss, model.parameters(), [(X, Y)], products="difference")
    assert relative_error(source.matvec(v), exact(model, v)) < most


def test_differences_of_parameters_in_half_precision():
    model = net("net").to(torch.bfloat16)
    v = vector(model)
    loss = lambda b: nn.functional.cross_entropy(model(b[0].bfloat16()).float(), b[1])  # noqa: E731
    source = Hessian(loss, model.parameters(), [(X, Y)], products="difference")
    assert relative_error(source.matvec(v), exact(model, v)) < 0.05


@pytest.mark.parametrize(("dtype", "most"), [(SINGLE, 1e-3), (F64, 1e-8)], ids=str)
def test_differences_in_full_precision(dtype, most):
    model = net("net").to(dtype)
    v = vector(model).to(dtype)
    half = X.to(torch.bfloat16)  # data in half precision is not computed in it
    loss = lambda b: nn.functional.cross_entropy(model(X.to(dtype)) + 0 * half.sum(), b[1])  # noqa: E731
    source = Hessian(loss, model.parameters(), [(half, Y)], products="difference")
    assert relative_error(source.matvec(v), exact(model, v)) < most


def test_a_difference_takes_two_gradients():
    w = torch.ones(3, dtype=F64, requires_grad=True)
    calls = []

    def loss(x):
        calls.append(1)
        return (x @ w).square().mean() / 2

    x = randn(8, 3)
    local = Hessian(loss, [w], [x], products="difference").local(x)
    for s in torch.eye(3, dtype=F64):
        close(local.product(s), x.mT @ (x @ s) / 8, 1e-8)
    assert len(calls) == 2 * 3


# ---- reentrant checkpoints


class Checkpointed(nn.Module):
    """A reentrant checkpoint after a layer of its own, so that gradients pass through it; or before all of them."""

    def __init__(self, before):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 3) if before else nn.Identity()
        self.inner, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        x = self.first(x if isinstance(self.first, nn.Linear) else x.clone().requires_grad_())
        return self.last(checkpoint(lambda h: self.inner(h).tanh(), x, use_reentrant=True))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("source", ["exact", "difference", "Gauss–Newton"])
def test_reentrant_checkpoints_name_the_remedy(before, source):
    model, x = Checkpointed(before), randn(5, 3, dtype=SINGLE)
    if source == "Gauss–Newton":
        made = GaussNewton(model, nn.functional.mse_loss, model.parameters(), [(x, x[:, :1])])
    else:
        made = Hessian(lambda b: model(b).square().mean(), model.parameters(), [x], products=source)
    with pytest.raises(DoubleBackwardError, match="use_reentrant=False"):
        made.matvec(torch.ones(made.size))
