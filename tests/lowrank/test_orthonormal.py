"""Orthonormal bases of tall columns, against a dense float64 reference: any condition, any scale, any dtype."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infhess.lowrank import ColumnBlocks, LowRank, orthonormal
from infhess.lowrank.orthonormal import basis, least_squares, tall_qr, tall_svd
from util import F64, close, randn

F32 = torch.float32
N, M = 70_000, 8  # more than one slab of rows


def of_condition(kappa, dtype=F64, rows=N, columns=M, seed=0):
    """A tall matrix with singular values from 1 down to 1/κ, evenly on a log scale."""
    U = torch.linalg.qr(randn(rows, columns, seed=seed)).Q
    V = torch.linalg.qr(randn(columns, columns, seed=seed + 1)).Q
    sigma = torch.logspace(0, -torch.log10(torch.tensor(float(kappa))), columns, dtype=F64)
    return ((U * sigma) @ V.mT).to(dtype)


def is_qr(A, Q, R):
    """Orthonormal columns, a triangle, and A = QR column by column, all to rounding."""
    eps, m = torch.finfo(A.dtype).eps, A.shape[1]
    assert Q.dtype == A.dtype
    assert R.dtype == F64
    assert torch.equal(R, R.triu())
    Q, A = Q.double(), A.double()
    close(Q.mT @ Q, torch.eye(m, dtype=F64), atol=30 * m * eps)
    lengths = torch.linalg.vector_norm(A, dim=0)
    assert bool((torch.linalg.vector_norm(Q @ R - A, dim=0) <= 30 * m * eps * lengths).all())


@pytest.fixture
def no_householder(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a Householder QR of tall columns")

    monkeypatch.setattr(torch.linalg, "qr", refuse)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("exponent", range(16))
def test_every_condition(exponent, dtype):
    A = of_condition(10.0**exponent, dtype)
    is_qr(A, *tall_qr(A))


@pytest.mark.parametrize(("dtype", "exponent"), [(F32, 0), (F32, 3), (F32, 7), (F32, 9), (F64, 0), (F64, 6), (F64, 12)])
def test_independent_columns_take_no_householder_qr(dtype, exponent, request):
    A = of_condition(10.0**exponent, dtype)
    request.getfixturevalue("no_householder")
    is_qr(A, *tall_qr(A))


DEPENDENT = {
    "two the same": lambda A: A[:, [0, 1, 1, 2]],
    "all the same": lambda A: A[:, [0, 0, 0]],
    "a sum": lambda A: torch.cat([A, A.sum(1, keepdim=True)], 1),
    "zero": lambda A: A * torch.tensor([1.0, 0, 1, 0, 1, 1, 1, 1]).to(A),
    "all zero": lambda A: 0 * A,
    "unit vectors": lambda A: torch.eye(len(A), M).to(A),
    "wild scales": lambda A: A * torch.logspace(-15, 15, M).to(A),
    "wilder scales": lambda A: A * torch.logspace(-30, 30, M, dtype=F64).to(A),
}


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("case", DEPENDENT.values(), ids=DEPENDENT)
def test_columns_that_depend_on_each_other_and_units(case, dtype):
    A = case(randn(N, M).to(dtype))
    is_qr(A, *tall_qr(A))


def test_columns_beyond_the_range_of_their_squares():
    A = randn(N, 3) * torch.tensor([1e-200, 1.0, 1e200], dtype=F64)
    is_qr(A, *tall_qr(A))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 12),
    exponent=st.floats(0, 16),
    single=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape(rows, columns, exponent, single, seed):
    """The slabs and rounds of large columns, on small ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orthonormal, "FEW", 0)
        columns = min(rows, columns)
        A = of_condition(10.0**exponent, F32 if single else F64, rows, columns, seed)
        is_qr(A, *tall_qr(A))


def test_layouts_agree():
    A = of_condition(1e3, F32)
    for Q, R in (tall_qr(A.contiguous()), tall_qr(A.mT.contiguous().mT)):
        is_qr(A, Q, R)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kappa", [1.0, 1e4, 1e7])
def test_singular_values_are_those_of_the_columns(kappa, dtype):
    A = of_condition(kappa, dtype)
    U, sigma, Vt = tall_svd(A)
    close(sigma, torch.linalg.svdvals(A.double()), 10 * M * torch.finfo(dtype).eps)
    close((U * sigma) @ Vt, A, 30 * M * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kappa", [1.0, 30.0, 1e5])
def test_a_basis_of_blocks_and_their_coordinates(kappa, dtype):
    A = of_condition(kappa, dtype)
    left, right = ColumnBlocks(A[:, :3], A[:, 3:6]), ColumnBlocks(A[:, 6:], A[:, :3])
    Q = basis([left, right])
    eps = 100 * M * torch.finfo(dtype).eps
    full = Q @ torch.eye(M, dtype=F64)
    close(full.double().mT @ full.double(), torch.eye(M, dtype=F64), atol=eps)
    close(Q.t(A), full.mT.double() @ A.double(), eps)
    for part in (left, right):
        close(Q.coordinates(part), full.mT.double() @ part.joined().double(), atol=eps)


def test_columns_far_from_dependent_are_their_own_basis(no_householder):
    A = ColumnBlocks(randn(N, 3).float())
    assert basis([A]).A.blocks[0] is A.blocks[0]


def test_no_columns():
    Q = basis([ColumnBlocks(randn(N, 0))])
    assert Q.shape == (N, 0)
    close((LowRank(2.0, randn(5, 0)).solve(torch.ones(5))), torch.full((5,), 0.5))


def test_least_squares_have_the_same_bits_whatever_was_in_memory_before():
    A, B = randn(83, 8), randn(83, 4, seed=1)
    dirt, found = [], []
    for i in range(60):  # integers of several sizes, half of them freed: what the next call allocates holds them
        dirt.append(torch.randint(0, 3, (1 + 7 * i,), dtype=torch.int32))
        if i % 2:
            del dirt[0]
        found.append(least_squares(A.clone(), B.clone()))
    assert all(torch.equal(x, found[0]) for x in found)
    close(A.mT @ (A @ found[0] - B), torch.zeros(8, 4, dtype=F64), atol=1e-12)
