"""Long columns, of more than one slab: the posterior in float32 is that in float64, and takes no Householder QR."""

from __future__ import annotations

import pytest
import torch

import infhess
from infhess import CurvatureShaped, Isotropic, LowRank, Symmetric, condition
from util import F64, close, randn

N, M = 70_000, 6


def products(dtype, kappa=1.0):
    """Directions of that condition number and their products with a diagonal matrix."""
    S = randn(N, M)
    S[:, 1:] = S[:, :1] + S[:, 1:] / kappa if kappa > 1 else S[:, 1:]
    d = torch.linspace(0.5, 1.5, N, dtype=F64)[:, None]
    return S.to(dtype), (d * S).to(dtype)


@pytest.fixture
def no_householder(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a Householder QR of tall columns")

    S = products(F64)
    monkeypatch.setattr(torch.linalg, "qr", refuse)
    return S


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("kappa", [1.0, 1e3])
@pytest.mark.parametrize("prior", [Isotropic(1.0, 1.0, 0.1), Symmetric(1.0, 1.0, 0.1)], ids=["isotropic", "symmetric"])
def test_solving_with_the_mean(prior, kappa, dtype, no_householder):
    mean = condition(prior, *products(dtype, kappa)).mean
    v = randn(N, seed=3, dtype=dtype)
    close(mean @ mean.solve(v), v, 1e4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_eigenpairs_with_error_bars(layout, no_householder):
    double = condition(CurvatureShaped(0.1), *products(F64)).eigh(4)
    S, Y = (X if layout == "columns" else X.mT.contiguous().mT for X in products(torch.float32))
    single = condition(CurvatureShaped(0.1), S, Y).eigh(4)
    close(single.values, double.values, 1e-5)
    close(single.std, double.std, 1e-4)
    close(single.vectors.mT @ single.vectors, torch.eye(4), 1e-5)
    close((single.vectors.double() * double.vectors).sum(0).abs(), torch.ones(4), 1e-4)


def test_the_variance_of_two_blocks_and_of_one_given_twice():
    posterior = condition(CurvatureShaped(0.1), *products(F64))
    u = randn(N, 3, seed=4)
    close(posterior.variance(u, u), posterior.variance(u, u.clone()), 1e-12)


@pytest.mark.parametrize("d", [1.0, 1e-3, 1e-7, -1.0])
@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_woodbury_and_the_basis_agree(d, damping):
    A = LowRank(d, randn(300, 3), randn(3, 2, seed=1), randn(300, 2, seed=2))
    v = randn(300, 2, seed=3)
    fast = A.solve(v, damping)
    _ = A._compressed  # from here on the basis is at hand, and used
    slow = A.solve(v, damping)
    exact = torch.linalg.solve(A.dense() + damping * torch.eye(300, dtype=F64), v)
    close(slow, exact, 1e-7)
    close(fast, exact, 1e-7)


def test_the_data_given_are_left_as_they_are():
    S, Y = products(torch.float32)
    kept = S.clone(), Y.clone()
    condition(Isotropic(1.0, 1.0, 0.1), S, Y)
    assert torch.equal(S, kept[0])
    assert torch.equal(Y, kept[1])


def test_inference_on_long_columns_begins_with_none():
    """Gram matrices of no columns at all, longer than a slab."""
    d = torch.linspace(1, 100, 20_000, dtype=torch.float32)
    source = infhess.Products(lambda s: d * s, lambda: torch.ones(20_000), 20_000)
    posterior = infhess.infer(source, steps=3)
    assert len(posterior) == 3
    torch.testing.assert_close(posterior.mean @ posterior.S, posterior.Y, rtol=1e-3, atol=1e-2)
