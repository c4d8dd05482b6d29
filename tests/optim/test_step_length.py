"""The step: Lanczos from below, and the rate that holds where a step leads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from infhess.curvature.batch_source import Hessian
from infhess.optim.controllers.step_length import backtracked
from infhess.preconditioners.scaling import identity
from util import F64, close, randn, spectrum


@pytest.mark.parametrize("iterations", [1, 3, 6])
def test_lanczos_is_a_lower_bound_that_reaches_the_largest_eigenvalue(iterations):
    from infhess.optim.controllers.step_length import largest
    from infhess.preconditioners.scaling import identity

    A = spectrum([9.0, 5.0, 2.0, 1.0, 0.5, -3.0])
    w = nn.Parameter(randn(6))
    source = infhess.Hessian(lambda batch: 0.5 * w @ A @ w * batch.mean(), [w], [torch.ones(2, dtype=F64)])
    found = largest(source, source.local(torch.ones(2, dtype=F64)), identity([6], source.like), iterations)
    g = A @ w.detach()
    first = torch.linalg.vector_norm(A @ g) / torch.linalg.vector_norm(g)
    assert float(first) - 1e-9 <= found.value <= 9.0 + 1e-9
    assert source.products <= iterations
    if iterations == 1:
        close(torch.tensor(found.value, dtype=F64), first, 1e-9)
    if iterations == 6:
        close(torch.tensor(found.value), torch.tensor(9.0), 1e-2)
        assert found.negative


@pytest.mark.parametrize("curving", [False, True])
def test_a_rate_holds_on_a_quadratic_and_is_cut_where_curvature_explodes(curving):
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.5]], dtype=torch.float64)

    def loss(batch):
        z = batch[0] @ w
        return (z.exp() - 40 * z).mean() if curving else (z - 40).square().mean() / 2

    source = Hessian(loss, [w], [(x,)])
    local = source.local((x,))
    H = torch.stack([local.product(e) for e in torch.eye(3).double()])
    rate = 1 / float(torch.linalg.eigvalsh(H)[-1])
    found = backtracked(source, (x,), local, identity([3], source.like), rate)
    if not curving:
        assert found == rate
        return
    end = torch.zeros(3).double() - found * local.gradient()
    mean = torch.zeros(3, 3).double()
    for share in torch.linspace(0, 1, 1001):
        p = (x @ (share * end)).exp()
        mean += (x.mT * p / len(x)) @ x / 1001
    change = mean @ end
    assert found < rate / 2
    assert float(change.norm() / end.norm()) * found <= 1.42
    assert not w.detach().any()
