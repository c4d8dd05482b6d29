"""Scaled identity, or diagonal, plus low rank: D + L C Rᵀ, in O(N m) memory and time a product."""

from __future__ import annotations

import torch
from torch import Tensor

from infhess._checks import count, finite_number, small_dtype
from infhess.lowrank.operator import SINGULAR, Eigenpairs, Operator, SingularError, SingularTriplets, regular_solve
from infhess.lowrank.root import DiagonalRoot
from infhess.lowrank.tall import Tall, span


class LowRank(Operator):
    """A = D + L C Rᵀ with L (N, p), C (p, q), R (M, q) and D = d·I (a number) or diag(d) (a vector).

    Args:
        d: a float or 0-dim tensor for a scaled identity (the leading diagonal where A is rectangular), or a vector.
        left: L, a tensor or a `Tall` of blocks.
        core: C, small, kept in double precision; the identity by default.
        right: R; L by default.

    >>> import torch
    >>> A = LowRank(2.0, torch.tensor([[1.0], [0.0]]))
    >>> A.dense().tolist()
    [[3.0, 0.0], [0.0, 2.0]]
    >>> A.power(2.0).dense().tolist()
    [[9.0, 0.0], [0.0, 4.0]]

    """

    def __init__(
        self, d: float | Tensor, left: Tall | Tensor, core: Tensor | None = None, right: Tall | Tensor | None = None
    ) -> None:
        self.left = left if isinstance(left, Tall) else Tall(left)
        self.right = self.left if right is None else right if isinstance(right, Tall) else Tall(right)
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

    # ---- products, transpose, inverse

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

    def _solve(self, v: Tensor, damping: float) -> Tensor:
        """Woodbury: D⁻¹v − D⁻¹L (I + C RᵀD⁻¹L)⁻¹ C RᵀD⁻¹v, with D + damping·I in the place of D."""
        inverse = self._inverse_diagonal(damping)
        Dv = _rows(inverse, v) if inverse.ndim else v * float(inverse)
        L = self._scaled(self.left, inverse)
        c = self._shrink(inverse, self.core @ self.right.t(Dv))
        return Dv - L @ (c if inverse.ndim else inverse * c)

    def inverse(self) -> LowRank:
        """A⁻¹ as an operator of the same kind (Woodbury)."""
        if self.shape[0] != self.shape[1]:
            raise SingularError(f"inverse needs a square operator, got shape {self.shape}")
        inverse = self._inverse_diagonal(0.0)
        core = -self._shrink(inverse, self.core)
        return LowRank(
            inverse,
            self._scaled(self.left, inverse),
            core if inverse.ndim else inverse**2 * core,
            self._scaled(self.right, inverse),
        )

    def _inverse_diagonal(self, damping: float) -> Tensor:
        shifted = self.d + damping
        if bool((shifted.abs() <= torch.finfo(shifted.dtype).eps * self.d.abs().max()).any()):
            raise SingularError(SINGULAR)
        return 1 / shifted

    def _shrink(self, inverse: Tensor, c: Tensor) -> Tensor:
        """(I + C RᵀD⁻¹L)⁻¹ c: the small system of Woodbury's formula."""
        gram = self.right.gram(self._scaled(self.left, inverse))
        gram = gram if inverse.ndim else inverse * gram
        eye = torch.eye(len(self.core)).to(gram)
        return regular_solve(eye + self.core @ gram, c, eye + self.core.abs() @ gram.abs())

    @staticmethod
    def _scaled(columns: Tall, inverse: Tensor) -> Tall:
        """diag(inverse) @ columns where D is a diagonal; a scaled identity goes into the small matrices instead."""
        return columns.scaled(inverse) if inverse.ndim else columns

    # ---- eigenpairs, singular triplets, powers

    def eigh(self, k: int) -> Eigenpairs:
        """The k largest eigenvalues of the symmetric part, descending, and their vectors.

        For a scaled identity by a QR of [L R] and a small problem; a general diagonal needs a block Krylov iteration.
        """
        k = self._square_and(k, "eigh")
        if self.d.ndim:
            return super().eigh(k)
        basis, small = self._compressed()
        values, w = torch.linalg.eigh((small + small.mT) / 2)
        return Eigenpairs(*self._with_complement(basis, float(self.d) + values, w, float(self.d), k))

    def svd(self, k: int) -> SingularTriplets:
        """The k largest singular values, descending, with left and right vectors."""
        k = count(k, "k", min(self.shape))
        if self.d.ndim or self.shape[0] != self.shape[1]:
            return super().svd(k)
        basis, small = self._compressed()
        small = small + float(self.d) * torch.eye(len(small), dtype=small.dtype, device=self.device)
        w, values, zt = torch.linalg.svd(small)
        top, U = self._with_complement(basis, values, w, abs(float(self.d)), k)
        sign = -1.0 if float(self.d) < 0 else 1.0
        _, V = self._with_complement(basis, values, zt.mT, abs(float(self.d)), k, sign)
        return SingularTriplets(top, U, V)

    def power(self, exponent: float) -> Operator:
        """Aᵖ of a symmetric positive definite A: the square root at ½, the inverse square root at −½.

        For a scaled identity any exponent, again as `LowRank`. For a general diagonal ±½ and ±1: the root of a diagonal
        plus low rank is no longer of that form, and is applied by quadrature.
        """
        exponent = finite_number(exponent, "exponent")
        self._square_and(1, "power")
        if exponent == 1.0:
            return self
        if exponent == -1.0:
            return self.inverse()
        if self.d.ndim:
            return DiagonalRoot(self, exponent, *self._bounds())
        basis, values, w = self._positive()
        d = float(self.d)
        return LowRank(d**exponent, basis, (w * (values**exponent - d**exponent)) @ w.mT)

    def _positive(self) -> tuple[Tensor, Tensor, Tensor]:
        """Q, λ, w with A = d(I − QQᵀ) + Qw diag(λ) wᵀQᵀ, where A is symmetric positive definite; or an error."""
        basis, small = self._compressed()
        if len(small) and float((small - small.mT).abs().max()) > 1e3 * torch.finfo(self.dtype).eps * float(
            small.abs().max()
        ):
            raise ValueError("power needs a symmetric operator; this one is not")
        values, w = torch.linalg.eigh((small + small.mT) / 2)
        values = values + self.d
        if not (float(self.d) > 0 and bool((values > 0).all())):
            raise ValueError(
                "power needs a positive definite operator; this one is not (its scaled identity must be positive too)"
            )
        return basis, values, w

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

    def _compressed(self) -> tuple[Tensor, Tensor]:
        """An orthonormal basis Q of span[L R], and Qᵀ L C Rᵀ Q in double precision."""
        basis = torch.linalg.qr(span([self.left, self.right]).joined()).Q
        columns = Tall(basis)
        return basis, columns.gram(self.left) @ self.core @ columns.gram(self.right).mT

    def _with_complement(
        self, basis: Tensor, values: Tensor, w: Tensor, d: float, k: int, sign: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The k largest of `values` (vectors basis @ w) and of d, which every direction outside of the basis has."""
        N, p = basis.shape
        extra = min(k, N - p)
        every = torch.cat([values, values.new_full((extra,), d)])
        order = torch.argsort(every, descending=True, stable=True)[:k]
        inside = order < p
        vectors = basis.new_zeros(N, len(order))
        vectors[:, inside] = basis @ w[:, order[inside]].to(self.dtype)
        vectors[:, ~inside] = sign * _complement(basis, int((~inside).sum()))
        return every[order].to(self.dtype), vectors


def _rows(d: Tensor, v: Tensor) -> Tensor:
    """diag(d) @ v for a vector or a block."""
    return d * v if v.ndim == 1 else d[:, None] * v


def _complement(basis: Tensor, j: int) -> Tensor:
    """j orthonormal columns orthogonal to the columns of an orthonormal basis (N, p), in O(N p j)."""
    N, p = basis.shape
    reflectors, tau = torch.geqrf(basis)
    unit = torch.eye(N, j, dtype=basis.dtype, device=basis.device) if p == 0 else basis.new_zeros(N, j)
    if p:
        unit[p : p + j] = torch.eye(j, dtype=basis.dtype, device=basis.device)
        unit = torch.ormqr(reflectors, tau, unit)
    return unit
