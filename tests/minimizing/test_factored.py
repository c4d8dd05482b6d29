"""The factored preconditioner against the Kronecker products that it stands for."""

from __future__ import annotations

import math

import torch

from convex_cases import small, softmax
from infhess.curvature import Hessian
from infhess.minimizing.factored import Layout, factored_inverse, factors_of, matrix_of
from infhess.minimizing.pool_curvature import PoolCurvature
from minimizing_cases import minimized

DOUBLE = torch.float64


def positive(n, g, decades=2.0):
    Q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=DOUBLE)).Q
    return Q @ torch.diag(torch.logspace(0, -decades, n, dtype=DOUBLE)) @ Q.mT


def test_weights_are_a_matrix_where_tensors_share_their_rows():
    assert matrix_of([torch.Size([5, 12]), torch.Size([5])]) == (5, 13)
    assert matrix_of([torch.Size([1, 12])]) == (1, 12)
    assert matrix_of([torch.Size([5, 12]), torch.Size([3])]) is None
    assert matrix_of([torch.Size([])]) is None


def test_a_layout_there_and_back():
    layout = Layout([torch.Size([3, 2]), torch.Size([3])])
    v = torch.arange(9.0)
    X = layout.matrix(v)
    assert X.tolist() == [[0, 1, 6], [2, 3, 7], [4, 5, 8]]
    assert torch.equal(layout.flat(X), v)
    assert torch.equal(layout.matrix(torch.stack([v, 2 * v]))[1], 2 * X)


def test_factors_of_a_matrix_normal():
    """Whitened by the estimate the true covariance is the identity, up to a scale and to noise."""
    g = torch.Generator().manual_seed(0)
    left, right = positive(4, g), positive(30, g)
    roots = [torch.linalg.cholesky(C) for C in (left, right)]
    G = roots[0] @ torch.randn(2000, 4, 30, generator=g, dtype=DOUBLE) @ roots[1].mT
    found = factors_of(G)
    columns = [found.times(e.view(4, 30), found.values**-0.5).reshape(-1) for e in torch.eye(120, dtype=DOUBLE)]
    R = torch.stack(columns, 1)
    values = torch.linalg.eigvalsh(R @ torch.kron(left, right) @ R)
    assert float(values[-1] / values[0]) < 2
    assert float(torch.linalg.cond(torch.kron(left, right))) > 9e3


def test_the_inverse_makes_a_softmax_well_conditioned():
    problem = small(softmax, 5, n=4000, d=20, l2=1e-3)
    model = problem.model()
    source = Hessian(problem.loss(model), model.parameters(), [problem.data])
    curvature = PoolCurvature(source, [problem.data], math.inf, DOUBLE)
    P2 = factored_inverse(source, problem.data, 400, curvature)
    H = problem.hessian(model.weight)
    PH = torch.stack([P2.apply(h) for h in H], 1)  # the transpose of H P²
    values = torch.linalg.eigvals(PH).real.sort().values
    assert float(values[-1] / values[0]) < 4
    assert float(torch.linalg.cond(H)) > 100
    assert not P2.negative


def test_secants_around_a_factored_preconditioner(monkeypatch):
    monkeypatch.setattr("infhess.minimizing.choice.LARGEST_DENSE", 0)
    monkeypatch.setattr("infhess.minimizing.choice.SECANT_PASSES_FACTORED", 0)
    _, result, gap, _ = minimized(small(softmax, 5, l2=1e-3, n=3000), gap=1e-8, passes=100)
    assert (result.method, result.stopped) == ("L-BFGS around P", "gap")
    assert gap <= 1e-8
    assert result.passes < 40
    assert result.product_points < 20 * 3000  # no product in a pass
