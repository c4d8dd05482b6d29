"""Orthonormal bases of tall columns in a few passes over memory: Cholesky-QR, repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from infhess._checks import small_dtype
from infhess.lowrank.column_blocks import SLAB, ColumnBlocks
from infhess.lowrank.pages import empty_rows

MILD = 1e-4  # least ratio 1/κ² of columns that are used as they are: κ = 100 costs two digits
LAST = 1 / 16  # Cholesky-QR loses κ² of rounding: with such a ratio 1/κ² a round is the last one
MOST_ROUNDS = 4
FEW = 1000  # rows: Householder's QR is no slower for so few


@dataclass(frozen=True)
class Basis:
    """Q = A F, orthonormal (N, p), with `columns` = Q R: A is the columns themselves if they are far from dependent.

    In that case F is small, in double precision, and Q is never formed.
    """

    A: ColumnBlocks
    F: Tensor
    R: Tensor
    columns: ColumnBlocks

    @property
    def shape(self) -> tuple[int, int]:
        """(N, p)."""
        return self.A.shape[0], self.F.shape[1]

    def __matmul__(self, c: Tensor) -> Tensor:
        """Q @ c for a small c."""
        return self.A @ (self.F @ c.to(self.F))

    def t(self, v: Tensor) -> Tensor:
        """Qᵀ @ v in double precision."""
        return self.F.mT @ self.A.t(v)

    def coordinates(self, part: ColumnBlocks) -> Tensor:
        """Qᵀ @ part, for blocks that are among the columns: taken from R."""
        place = dict(zip(map(_address, self.columns.blocks), torch.split(self.R, self.columns.widths, dim=1)))
        return torch.cat([place[_address(block)] for block in part.blocks], dim=1)


def basis(parts: Sequence[ColumnBlocks]) -> Basis:
    """An orthonormal basis of the span of the distinct blocks of several tall matrices."""
    columns = ColumnBlocks(*{_address(b): b for part in parts for b in part.blocks}.values())
    factors = _triangles(columns, columns.dtype, MILD)
    R = _product(factors) if factors else torch.zeros(0, 0)
    if factors and _near_one(torch.linalg.vector_norm(R, dim=0), columns.dtype):
        return Basis(columns, torch.linalg.solve_triangular(R, torch.eye(len(R)).to(R), upper=True), R, columns)
    Q, R = tall_qr(columns.joined())
    return Basis(ColumnBlocks(Q), torch.eye(Q.shape[1]).to(R), R, columns)


def tall_qr(A: Tensor) -> tuple[Tensor, Tensor]:
    """A = Q R with orthonormal Q (N, m), in the dtype of A, and upper triangular R (m, m) in double precision.

    Cholesky-QR: AᵀA = RᵀR, Q = A R⁻¹, with one pass over A for each. It loses κ(A)² of rounding, so it is repeated on its own
    result until that is orthonormal to rounding (CholeskyQR2, Yamamoto et al. 2015). Columns are normalised first; everything
    is in double precision, slab by slab, which is exact enough for any float32 columns. A float64 matrix with κ > 1e7 gets a
    shift in the first round (shifted CholeskyQR3, Fukaya et al. 2020). Linearly dependent columns, whose Gram matrix has no
    Cholesky factor even so, use Householder QR, and so do few rows.

    >>> import torch
    >>> A = torch.eye(3, 2).double() + 1
    >>> Q, R = tall_qr(A)
    >>> torch.allclose(Q @ R, A), torch.allclose(Q.mT @ Q, torch.eye(2).double())
    (True, True)
    """
    columns, work = ColumnBlocks(A), small_dtype(A.device)
    factors = _triangles(columns, work, -float("inf")) if len(A) > FEW else []
    if not factors:
        Q, R = torch.linalg.qr(A)
        return Q, R.to(work)
    Q = empty_rows(A.shape[1], A.shape[0], A).mT  # one row of memory per column, as for observations
    for part, X in zip(torch.split(Q, SLAB), _slabs(columns, factors, work)):
        part.copy_(X)
    return Q, _product(factors)


def tall_svd(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The thin U, σ, Vᵀ of tall columns, from the small matrix R of A = Q R; in the dtype of A."""
    if len(A) <= FEW:
        few: tuple[Tensor, Tensor, Tensor] = torch.linalg.svd(A, full_matrices=False)
        return few
    Q, R = tall_qr(A)
    U, sigma, Vt = torch.linalg.svd(R, full_matrices=False)
    return Q @ U.to(A), sigma.to(A), Vt.to(A)


def _triangles(A: ColumnBlocks, work: torch.dtype, least: float) -> list[Tensor]:
    """R₁, R₂, … with A R₁⁻¹R₂⁻¹… orthonormal to rounding; empty if there are none, or if 1/κ(A)² is below `least`."""
    if not A.shape[1]:
        return [torch.zeros(0, 0, dtype=small_dtype(A.device), device=A.device)]
    factors: list[Tensor] = []
    for _ in range(MOST_ROUNDS):
        G = _gram(A, factors, work)
        lengths = G.diagonal().sqrt()
        G = G / lengths[:, None] / lengths
        if not bool(torch.isfinite(G).all()):
            return []
        mu = torch.linalg.eigvalsh(G)
        if not factors and float(mu[0]) < least * float(mu[-1]):
            return []
        R, failed = torch.linalg.cholesky_ex(_shifted(G, mu) if not factors else G, upper=True)
        if bool(failed):
            return []
        factors.append(R * lengths)
        if float(mu[0]) >= LAST * float(mu[-1]):
            return factors
    return []


def _shifted(G: Tensor, mu: Tensor) -> Tensor:
    """G, or G + sI with s above its rounding if an eigenvalue is not."""
    noise = 10 * len(G) * torch.finfo(G.dtype).eps * float(mu[-1])
    return G if float(mu[0]) > 10 * noise else G + noise * torch.eye(len(G)).to(G)


def _gram(A: ColumnBlocks, factors: Sequence[Tensor], work: torch.dtype) -> Tensor:
    """XᵀX of X = A R₁⁻¹R₂⁻¹…: products of slabs in the dtype `work`, their sum in double precision."""
    if not factors and work == A.dtype:
        return A.gram(A)
    m = A.shape[1]
    total = torch.zeros(m, m, dtype=small_dtype(A.device), device=A.device)
    for X in _slabs(A, factors, work):
        total += X.mT @ X
    return total


def _slabs(A: ColumnBlocks, factors: Sequence[Tensor], work: torch.dtype) -> Iterator[Tensor]:
    """Rows of A R₁⁻¹R₂⁻¹…, in slabs that stay in cache from step to step."""
    triangles = [R.to(work) for R in factors]
    for X in A.slabs():
        X = X.to(work)
        for R in triangles:
            X = torch.linalg.solve_triangular(R, X, upper=True, left=False)
        yield X


def _near_one(lengths: Tensor, dtype: torch.dtype) -> bool:
    """Whether coefficients of such columns, and their squares, are within the range of their dtype."""
    least = torch.finfo(dtype).tiny ** 0.25
    return bool(((lengths > least) & (lengths < 1 / least)).all())


def _product(factors: Sequence[Tensor]) -> Tensor:
    """… R₂ R₁."""
    return reduce(lambda R, next_: next_ @ R, factors)


def _address(block: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return block.data_ptr(), block.shape, block.stride()


def complement(basis: Tensor, j: int) -> Tensor:
    """j orthonormal columns orthogonal to the columns of an orthonormal basis (N, p), in O(N p j)."""
    N, p = basis.shape
    unit = basis.new_zeros(N, j)
    unit[p : p + j] = torch.eye(j, dtype=basis.dtype, device=basis.device)
    return torch.ormqr(*torch.geqrf(basis), unit) if p and j else unit


def least_squares(A: Tensor, B: Tensor) -> Tensor:
    """The X that minimises |A X − B|, the shortest if there are many; the same bits each time.

    Not by gelsy, PyTorch's default on CPUs: its pivots start from uninitialised memory
    (https://github.com/pytorch/pytorch/issues/187411), so that digits, and sometimes the rank, change from call to call.
    """
    solution: Tensor = torch.linalg.lstsq(A, B, driver=None if A.is_cuda else "gelsd").solution
    return solution
