"""Gauss-Newton products against the dense JᵀHJ."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from infhess import GaussNewton, Hessian
from nets import build, flat_gradient
from util import F64, close, randn


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_gauss_newton_is_J_H_J_and_positive():
    model, _, (x, y) = build("layernorm")
    loss = nn.functional.cross_entropy
    targets = y.argmax(1)
    source = GaussNewton(model, loss, model.parameters(), [(x, targets)])
    params = dict(model.named_parameters())
    J = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(params)
    J = torch.cat([j.reshape(24, -1) for j in J.values()], 1)
    outputs = model(x).detach()
    H = torch.func.hessian(lambda z: loss(z, targets))(outputs).reshape(24, 24)
    G = torch.stack([source.matvec(e) for e in torch.eye(source.size, dtype=F64)], 1)
    close(G, (J.mT @ H @ J).detach(), 1e-10)
    assert float(torch.linalg.eigvalsh((G + G.mT) / 2)[0]) > -1e-12
    close(source.gradient(), flat_gradient(model, lambda b: loss(model(b[0]), b[1]), (x, targets)), 1e-10)


def test_gauss_newton_of_a_linear_model_is_the_hessian():
    model, x, y = nn.Linear(4, 2).double(), randn(8, 4), randn(8, 2, seed=1)
    g = GaussNewton(model, nn.functional.mse_loss, model.parameters(), [(x, y)])
    h = Hessian(lambda b: nn.functional.mse_loss(model(b[0]), b[1]), model.parameters(), [(x, y)])
    s = randn(10)
    close(g.matvec(s), h.matvec(s), 1e-12)
