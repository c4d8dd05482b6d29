"""Diagonal plus low rank against dense arrays."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st

from infhess import Isotropic, Kronecker, LowRank, Symmetric, condition
from infhess.lowrank import ColumnBlocks, Dense, SingularError
from util import F64, close, randn, spectrum

N = 13
DIAGONALS = {"identity": 1.7, "diagonal": torch.rand(N, generator=torch.Generator().manual_seed(1), dtype=F64) + 0.3}


def dense_of(d, L, C, R):
    D = torch.diag(d) if isinstance(d, torch.Tensor) else d * torch.eye(L.shape[0], R.shape[0], dtype=F64)
    return D + L @ C @ R.mT


@pytest.fixture(params=DIAGONALS)
def general(request):
    """(operator, dense) that is not symmetric."""
    d, (L, C, R) = DIAGONALS[request.param], (randn(N, 3), randn(3, 4, seed=1), randn(N, 4, seed=2))
    return LowRank(d, L, C, R), dense_of(d, L, C, R)


@pytest.fixture(params=DIAGONALS)
def positive(request):
    d, L, C = DIAGONALS[request.param], randn(N, 3), torch.diag(torch.tensor([3.0, 0.5, -0.02], dtype=F64))
    return LowRank(d, L, C), dense_of(d, L, C, L)


def test_products_transpose_and_dense(general):
    A, D = general
    V = randn(N, 2, seed=5)
    close(A.dense(), D, 1e-13)
    close(A @ V, D @ V, 1e-13)
    close(A @ V[:, 0], D @ V[:, 0], 1e-13)
    close(A.T @ V, D.mT @ V, 1e-13)


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_solve_is_the_inverse(general, damping):
    A, D = general
    V = randn(N, 2, seed=5)
    close(A.solve(V, damping), torch.linalg.solve(D + damping * torch.eye(N, dtype=F64), V), 1e-11)


def test_inverse_is_of_the_same_kind(general):
    A, D = general
    assert isinstance(A.inverse(), LowRank)
    close(A.inverse().dense(), torch.linalg.inv(D), 1e-11)


@pytest.mark.parametrize("k", [1, 4, N])
def test_eigh_of_the_symmetric_part(general, k):
    A, D = general
    pairs, symmetric = A.eigh(k), (D + D.mT) / 2
    close(pairs.values, torch.linalg.eigvalsh(symmetric).flip(0)[:k], 1e-12)
    close(symmetric @ pairs.vectors, pairs.vectors * pairs.values, 1e-7)
    close(pairs.vectors.mT @ pairs.vectors, torch.eye(k, dtype=F64), 1e-11)


@pytest.mark.parametrize("k", [1, 4, N])
def test_svd(general, k):
    A, D = general
    U, values, V = A.svd(k).vectors, A.svd(k).values, A.svd(k).right
    close(values, torch.linalg.svdvals(D)[:k], 1e-10)
    close(D @ V, U * values, 1e-7)
    close(U.mT @ U, torch.eye(k, dtype=F64), 1e-10)
    close(V.mT @ V, torch.eye(k, dtype=F64), 1e-10)


def test_repeated_eigenvalues_are_all_found():
    d = torch.full((40,), 2.0, dtype=F64)
    close(LowRank(d, randn(40, 1)).eigh(5).values[1:], torch.full((4,), 2.0), 1e-12)
    close(LowRank(-1.0, 0 * randn(40, 1)).svd(3).values, torch.ones(3), 1e-12)


def test_roots(positive):
    A, D = positive
    root, inverse_root = A.power(0.5).dense(), A.power(-0.5).dense()
    close(root @ root, D, 1e-12)
    close(root, root.mT, 1e-12)
    close(root @ inverse_root, torch.eye(N, dtype=F64), 1e-12)
    close(A.power(0.5).solve(randn(N)), inverse_root @ randn(N), 1e-11)


def test_any_power_of_a_scaled_identity_plus_low_rank():
    A = LowRank(2.0, randn(N, 2))
    values, V = torch.linalg.eigh(A.dense())
    close(A.power(-0.3).dense(), (V * values**-0.3) @ V.mT, 1e-12)


def test_rectangular():
    L, C, R = randn(5, 2), randn(2, 2, seed=1), randn(7, 2, seed=2)
    A = LowRank(1.3, L, C, R)
    D = dense_of(1.3, L, C, R)
    close(A.dense(), D, 1e-13)
    close(A.T.dense(), D.mT, 1e-13)
    close(A.svd(5).values, torch.linalg.svdvals(D), 1e-10)
    with pytest.raises(SingularError, match="square"):
        A.solve(torch.ones(5, dtype=F64))
    with pytest.raises(ValueError, match="square"):
        A.eigh(1)


def test_scipy_operator_solves(positive):
    A, D = positive
    operator = A.to_scipy()
    assert isinstance(operator, scipy.sparse.linalg.LinearOperator)
    b = randn(N).numpy()
    np.testing.assert_allclose(operator @ b, D.numpy() @ b, rtol=1e-12)
    np.testing.assert_allclose(operator.T @ b, D.numpy().T @ b, rtol=1e-12)
    np.testing.assert_allclose(operator @ np.ones(N, dtype=int), D.numpy().sum(1), rtol=1e-12)
    x, info = scipy.sparse.linalg.cg(operator, b, rtol=1e-12)
    assert info == 0
    np.testing.assert_allclose(D.numpy() @ x, b, rtol=1e-8)


def test_nothing_is_joined_or_square_at_a_million_rows():
    """A million rows squared would be 4 TB: products, solve and eigenpairs stay linear in N."""
    S, Y = 1e-3 * randn(10**6, 2, dtype=torch.float32), 1e-3 * randn(10**6, 2, seed=1, dtype=torch.float32)
    A = LowRank(2.0, ColumnBlocks(S, Y))
    v = A @ torch.ones(10**6)
    assert A.solve(v).sub(1).abs().max() < 1e-2
    assert A.eigh(2).vectors.shape == (10**6, 2)


def test_singular_is_an_error_with_a_remedy():
    A = LowRank(0.0, randn(N, 2))
    with pytest.raises(SingularError, match="damping"):
        A.solve(torch.ones(N, dtype=F64))
    close(
        A.solve(randn(N), damping=0.5), torch.linalg.solve(A.dense() + 0.5 * torch.eye(N, dtype=F64), randn(N)), 1e-11
    )
    u = randn(N, 1) / randn(N, 1).norm()
    with pytest.raises(SingularError, match="damping"):
        LowRank(1.0, u, -torch.ones(1, 1)).solve(randn(N))
    with pytest.raises(SingularError, match="damping"):
        Dense(torch.zeros(3, 3)).solve(torch.ones(3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A: A @ torch.ones(4, dtype=F64), r"expected shape \(13,\)"),
        (lambda A: A @ torch.ones(13, dtype=torch.int64), "floating-point"),
        (lambda A: A @ torch.ones(13, dtype=torch.complex64), "floating-point"),
        (lambda A: A @ torch.ones(13, device="meta"), "is on meta"),
        (lambda A: A.eigh(0), "expected 1 to 13, got 0"),
        (lambda A: A.eigh(14), "expected 1 to 13, got 14"),
        (lambda A: A.eigh(2.0), "whole number"),
        (lambda A: A.solve(torch.ones(13, dtype=F64), damping=-1.0), "damping: expected a number of at least 0"),
        (lambda A: A.power(float("nan")), "finite"),
        (lambda A: LowRank(-1.0, randn(13, 1)).power(0.5), "positive definite"),
        (lambda A: LowRank(1.0, randn(13, 1), None, randn(13, 1, seed=3)).power(0.5), "symmetric"),
        (lambda A: LowRank(torch.ones(3), randn(13, 1)), "does not fit"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(LowRank(1.0, randn(N, 2)))


@given(
    n=st.integers(1, 12),
    p=st.integers(1, 14),
    d=st.floats(0.1, 10),
    scale=st.sampled_from([1e-9, 1e-3, 1.0, 1e3, 1e9]),
    seed=st.integers(0, 1000),
)
def test_any_shape_and_scale(n, p, d, scale, seed):
    """More columns than rows, one row, tiny and huge entries: product, solve and eigenvalues against dense."""
    L = randn(n, p, seed=seed)
    A = LowRank(d * scale, L, scale * torch.eye(p, dtype=F64))
    D = scale * (d * torch.eye(n, dtype=F64) + L @ L.mT)
    close(A.dense(), D, 1e-12)
    close(A.eigh(n).values, torch.linalg.eigvalsh(D).flip(0), 1e-11)
    v = randn(n, seed=seed + 1)
    close(D @ A.solve(v), v, 1e-8)


@pytest.mark.parametrize(("dtype", "b0"), [(F64, 1e-6), (F64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize("kind", [Isotropic, Symmetric, Kronecker])
def test_solve_is_as_good_as_a_dense_solve(kind, dtype, b0):
    B = spectrum([1.0, 0.7, 0.4, 0.2, 0.1] + [b0] * 55)
    S = randn(60, 8)
    prior = Kronecker(b0) if kind is Kronecker else kind(b0, 1.0)
    mean, v = condition(prior, S.to(dtype), (B @ S).to(dtype)).mean, randn(60, seed=3).to(dtype)
    A = mean.dense()
    x, y = mean.solve(v), torch.linalg.solve(A, v)
    ours, theirs = ((A @ z - v).norm() / v.norm() for z in (x, y))
    assert float(ours) < 30 * float(theirs) + 1e-6 * float(torch.linalg.cond(A)) * torch.finfo(dtype).eps * 1e6


def test_a_mean_without_an_identity_solves_where_it_is_regular():
    B, S = randn(4, 4), randn(4, 4, seed=1)
    v = randn(4, seed=2)
    close(condition(Isotropic(), S, B @ S).mean.solve(v), torch.linalg.solve(B, v), 1e-9)
    one = condition(Isotropic(), torch.ones(1, 1, dtype=F64), 3 * torch.ones(1, 1, dtype=F64))
    close(one.mean.solve(torch.ones(1)), torch.tensor([1 / 3]), 1e-6)
    gap = LowRank(torch.tensor([0.0, 1.0, 2.0], dtype=F64), torch.eye(3, 1, dtype=F64))
    with pytest.raises(ValueError, match="damping"):
        gap.solve(torch.ones(3, dtype=F64))


def test_eigenpairs_of_a_large_diagonal_plus_low_rank():
    d = torch.rand(20000, generator=torch.Generator().manual_seed(0), dtype=F64) + 0.5
    L = randn(20000, 3) / 50
    A = LowRank(d, L)
    values, vectors, _ = A.eigh(3)
    close(A @ vectors, vectors * values, 1e-6)
    assert float(values[-1]) > 1.5
