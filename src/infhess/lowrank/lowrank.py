"""Scaled identity, or diagonal, plus low rank: D + L C Rᵀ, in O(N m) memory and time per product."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from infhess._checks import count, finite_number, rounding, small_dtype
from infhess._precision import full_precision
from infhess.lowrank.column_blocks import ColumnBlocks
from infhess.lowrank.operator import (
    SINGULAR,
    Eigenpairs,
    Operator,
    SingularError,
    SingularTriplets,
    regular_solve,
    singular,
)
from infhess.lowrank.orthonormal import Basis, basis, complement
from infhess.lowrank.root import DiagonalRoot

LOST = 1e-2  # Woodbury's formula may lose two digits


class LowRank(Operator):
    """A = D + L C Rᵀ with L (N, p), C (p, q), R (M, q) and D = d·I (a number) or diag(d) (a vector).

    For a scaled identity everything except products uses an orthonormal basis Q of span[L R], where A is small:
    A = d (I − QQᵀ) + Q (dI + QᵀLCRᵀQ) Qᵀ. It is computed once, and does not lose digits as Woodbury's formula may. If that
    formula is accurate, `solve` uses it and needs no basis.

    Args:
        d: a float or 0-dim tensor for a scaled identity (the leading diagonal if A is rectangular), or a vector.
        left: L, a tensor or a `ColumnBlocks` of blocks.
        core: C, small, kept in double precision; the identity by default.
        right: R; L by default.
        gram: RᵀL, if already known.

    >>> import torch
    >>> A = LowRank(2.0, torch.tensor([[1.0], [0.0]]))
    >>> A.dense().tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    >>> A.power(2.0).dense().tolist()
    [[9.0, 0.0], [0.0, 4.0]]

    """

    def __init__(
        self,
        d: float | Tensor,
        left: ColumnBlocks | Tensor,
        core: Tensor | None = None,
        right: ColumnBlocks | Tensor | None = None,
        *,
        gram: Tensor | None = None,
    ) -> None:
        self.gram = gram
        self.left = left if isinstance(left, ColumnBlocks) else ColumnBlocks(left)
        self.right = self.left if right is None else right if isinstance(right, ColumnBlocks) else ColumnBlocks(right)
        self.shape = (self.left.shape[0], self.right.shape[0])
        self.like = self.left.blocks[0].new_empty(0)
        small = torch.empty(0, dtype=small_dtype(self.device), device=self.device)
        self.core = (torch.eye(self.left.shape[1]) if core is None else core).to(small)
        self.d = (
            d.to(self.like) if isinstance(d, Tensor) and d.ndim else torch.as_tensor(d, dtype=small.dtype).to(small)
        )
        if self.d.ndim and (self.d.ndim != 1 or self.shape != (len(self.d), len(self.d))):
            raise ValueError(
                f"a diagonal of shape {tuple(self.d.shape)} does not fit an operator of shape {self.shape}"
            )

    # ---- products and transpose

    def _diagonal_product(self, v: Tensor) -> Tensor:
        N, M = self.shape
        if self.d.ndim:
            return _rows(self.d, v)
        if N == M:
            return v * float(self.d)
        out = v.new_zeros(N, *v.shape[1:])
        out[: min(N, M)] = v[: min(N, M)] * float(self.d)
        return out

    def _product(self, v: Tensor) -> Tensor:
        out = self._diagonal_product(v)
        out += self.left @ (self.core @ self.right.t(v))
        return out

    @property
    def T(self) -> LowRank:
        """The transpose, sharing the columns."""
        return LowRank(self.d, self.right, self.core.mT, self.left)

    # ---- the inverse

    def _solve(self, v: Tensor, damping: float) -> Tensor:
        """(A + damping·I)⁻¹ v: a small system on the basis, a division outside it."""
        if self.d.ndim:
            return self._solve_diagonal(v, damping)
        x = self._woodbury_if_stable(v, damping)
        if x is not None:
            return x
        Q, _ = self._compressed
        inside = Q.t(v)
        if self.shape[0] == Q.shape[1]:
            return Q @ self._inside(damping, inside)
        d = self._outside(damping)
        return v / d + Q @ (self._inside(damping, inside) - inside / d)

    def _woodbury_if_stable(self, v: Tensor, damping: float) -> Tensor | None:
        """[v − L C (dI + RᵀLC)⁻¹ Rᵀv] / d with d + damping for d, or None if that would lose digits.

        Digits are lost if the small matrix is nearly singular compared with the terms of its sums, or if a difference is much
        shorter than its terms.
        """
        d = float(self.d) + damping
        if d == 0 or "_compressed" in self.__dict__:
            return None
        small, size = self._projected
        eye = d * torch.eye(len(small)).to(small)
        try:
            inside = regular_solve(small + eye, self.right.t(v), size + eye.abs(), LOST)
        except SingularError:
            return None
        x = (v - self.left @ (self.core @ inside)) / d
        lengths = torch.linalg.vector_norm(x, dim=0), torch.linalg.vector_norm(v, dim=0) / abs(d)
        return x if bool((lengths[0] >= LOST * lengths[1]).all()) else None

    @cached_property
    def _projected(self) -> tuple[Tensor, Tensor]:
        """RᵀLC, and a bound on the terms of its sums: |R| |L| |C| with norms of columns."""
        size = torch.outer(self.right.lengths(), self.left.lengths()) @ self.core.abs()
        gram = self.right.gram(self.left) if self.gram is None else self.gram
        return gram @ self.core, size

    def _outside(self, damping: float) -> float:
        """d + damping, by which A multiplies every vector outside the basis."""
        d = float(self.d) + damping
        if abs(d) < max(torch.finfo(self.dtype).tiny, 1e-3 * torch.finfo(self.core.dtype).eps * self.core_size):
            raise SingularError(SINGULAR)
        return d

    @cached_property
    def core_size(self) -> float:
        """The largest entry of the small matrix: the scale for comparisons with zero."""
        _, small = self._compressed
        return float(small.abs().max()) if len(small) else 0.0

    def _inside(self, damping: float, b: Tensor) -> Tensor:
        """(dI + damping·I + QᵀLCRᵀQ)⁻¹ b."""
        _, small = self._compressed
        shift = (float(self.d) + damping) * torch.eye(len(small)).to(small)
        return regular_solve(small + shift, b, small.abs() + shift.abs(), singular(self.dtype))

    def _solve_diagonal(self, v: Tensor, damping: float) -> Tensor:
        """D^{−½} (I + D^{−½}LCRᵀD^{−½})⁻¹ D^{−½} v for a diagonal of one sign; Woodbury's formula for any other."""
        d = self.d + damping
        sign = 1.0 if bool((d > 0).all()) else -1.0 if bool((d < 0).all()) else 0.0
        if sign == 0.0:
            return self.woodbury(v, damping)
        half = d.abs().rsqrt()
        whitened = LowRank(sign, self.left.scaled(half), self.core, self.right.scaled(half))
        return _rows(half, whitened._solve(_rows(half, v), 0.0))

    @full_precision
    def woodbury(self, v: Tensor, damping: float) -> Tensor:
        """D⁻¹v − D⁻¹L (I + C RᵀD⁻¹L)⁻¹ C RᵀD⁻¹v, with D + damping·I instead of D, a diagonal."""
        if not bool((self.d + damping).all()):
            raise SingularError(SINGULAR)
        inverse = 1 / (self.d + damping)
        Dv, L = _rows(inverse, v), self.left.scaled(inverse)
        least = singular(self.dtype)
        gram, eye = self.right.gram(L), torch.eye(len(self.core)).to(self.core)
        size = eye + self.core.abs() @ gram.abs()
        return Dv - L @ regular_solve(eye + self.core @ gram, self.core @ self.right.t(Dv), size, least)

    @full_precision
    def inverse(self) -> LowRank:
        """A⁻¹ as an operator of the same kind."""
        self._square_and(1, "inverse")
        if self.d.ndim:
            half = self.d.abs().rsqrt()
            if not bool((self.d > 0).all()):
                raise SingularError("the inverse of a diagonal plus low rank needs a positive diagonal; use .solve(v)")
            inner = LowRank(1.0, self.left.scaled(half), self.core, self.right.scaled(half)).inverse()
            return LowRank(1 / self.d, inner.left.scaled(half), inner.core, inner.right.scaled(half))
        Q, small = self._compressed
        eye = torch.eye(len(small)).to(small)
        outside = 1 / self._outside(0.0) if self.shape[0] > Q.shape[1] else 0.0
        return LowRank(outside, Q.A, Q.F @ (self._inside(0.0, eye) - outside * eye) @ Q.F.mT)

    # ---- eigenpairs, singular triplets, powers

    @full_precision
    def eigh(self, k: int) -> Eigenpairs:
        """The k largest eigenvalues of the symmetric part, descending, and their vectors.

        For a scaled identity by a QR of [L R] and a small problem; a general diagonal needs a block Krylov iteration.
        """
        k = self._square_and(k, "eigh")
        if self.d.ndim:
            return super().eigh(k)
        _, small = self._compressed
        values, w = torch.linalg.eigh((small + small.mT) / 2)
        top, (vectors,) = self._with_complement(float(self.d) + values, [w], float(self.d), k)
        return Eigenpairs(top, vectors)

    @full_precision
    def svd(self, k: int) -> SingularTriplets:
        """The k largest singular values, descending, with left and right vectors."""
        k = count(k, "k", min(self.shape))
        if self.d.ndim or self.shape[0] != self.shape[1]:
            return super().svd(k)
        _, small = self._compressed
        w, values, zt = torch.linalg.svd(small + float(self.d) * torch.eye(len(small)).to(small))
        top, (U, V) = self._with_complement(values, [w, zt.mT], abs(float(self.d)), k)
        return SingularTriplets(top, U, V)

    @full_precision
    def power(self, exponent: float) -> Operator:
        """Aᵖ of a symmetric positive definite A: the square root at ½, the inverse square root at −½.

        A scaled identity allows any exponent, and the result is a `LowRank`. A general diagonal allows ±½ and ±1: the root of a
        diagonal plus low rank does not have that form, and is applied by quadrature.
        """
        exponent = finite_number(exponent, "exponent")
        self._square_and(1, "power")
        if exponent == 1.0:
            return self
        if exponent == -1.0:
            return self.inverse()
        if self.d.ndim:
            return DiagonalRoot(self.woodbury, self, exponent, *self._bounds())
        Q, values, w = self._positive()
        d, w = float(self.d), Q.F @ w
        return LowRank(d**exponent, Q.A, (w * (values**exponent - d**exponent)) @ w.mT)

    def _positive(self) -> tuple[Basis, Tensor, Tensor]:
        """Q, λ, w with A = d(I − QQᵀ) + Qw diag(λ) wᵀQᵀ; raises if A is not symmetric positive definite."""
        Q, small = self._compressed
        if (
            len(small)
            and float((small - small.mT).abs().max()) > 100 * rounding(self.dtype, len(small)) * self.core_size
        ):
            raise ValueError("power needs a symmetric operator; this one is not")
        values, w = torch.linalg.eigh((small + small.mT) / 2)
        values = values + self.d
        if not (float(self.d) > 0 and bool((values > 0).all())):
            raise ValueError("power needs a positive definite operator, its scaled identity included; this one is not")
        return Q, values, w

    def _bounds(self) -> tuple[float, float]:
        """Bounds on the spectrum of a positive definite D + LCRᵀ, from that of I + D^{−½} L C Rᵀ D^{−½}."""
        if not bool((self.d > 0).all()):
            raise ValueError(
                "power needs a positive definite operator; this one has a diagonal entry that is not positive"
            )
        root = self.d.rsqrt()
        _, values, _ = LowRank(1.0, self.left.scaled(root), self.core, self.right.scaled(root))._positive()
        low, high = min([1.0, *values.tolist()]), max([1.0, *values.tolist()])
        return float(self.d.min()) * low, float(self.d.max()) * high

    @cached_property
    def _compressed(self) -> tuple[Basis, Tensor]:
        """An orthonormal basis Q of span[L R], and Qᵀ L C Rᵀ Q in double precision."""
        Q = basis([self.left, self.right])
        return Q, Q.coordinates(self.left) @ self.core @ Q.coordinates(self.right).mT

    def _with_complement(self, values: Tensor, small: list[Tensor], d: float, k: int) -> tuple[Tensor, list[Tensor]]:
        """The k largest of `values` (with vectors Q @ w for w in small) and of d, the eigenvalue outside the basis."""
        Q, _ = self._compressed
        N, p = Q.shape
        every = torch.cat([values, values.new_full((min(k, N - p),), d)])
        order = torch.argsort(every, descending=True, stable=True)[:k]
        inside = order < p
        if bool(inside.all()):
            return every[order].to(self.dtype), [Q @ w[:, order] for w in small]
        beyond = complement(Q @ torch.eye(p).to(values), int((~inside).sum()))
        blocks = []
        for i, w in enumerate(small):
            vectors = beyond.new_zeros(N, len(order))
            vectors[:, inside] = Q @ w[:, order[inside]]
            vectors[:, ~inside] = beyond if i == 0 or float(self.d) >= 0 else -beyond
            blocks.append(vectors)
        return every[order].to(self.dtype), blocks


def _rows(d: Tensor, v: Tensor) -> Tensor:
    """diag(d) @ v for a vector or a block."""
    return d * v if v.ndim == 1 else d[:, None] * v
