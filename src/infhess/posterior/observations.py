"""The data: unit directions, the products observed along them, and the small Gram matrices, which grow by a row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from infhess._checks import as_real, finite_columns, same_place, small_dtype
from infhess.lowrank import Tall


class _Buffer:
    """Room for observations, one a row: contiguous for products, and a further one is written in place."""

    def __init__(self, S: Tensor, Y: Tensor, capacity: int) -> None:
        self.S, self.Y = S.new_empty(capacity, S.shape[1]), Y.new_empty(capacity, Y.shape[1])
        self.used = len(S)
        self.S[: self.used], self.Y[: self.used] = S, Y


@dataclass(frozen=True, eq=False)
class Observations:
    """m observations y = B s, kept with |s| = 1: (s, y) and (cs, cy) say the same of B, for every noise model here.

    S (M, m) and Y (N, m) are the unit directions and their products, norms (m,) the lengths that were divided out,
    G = SᵀS and, for a square B, T = SᵀY, in double precision.
    """

    buffer: _Buffer
    norms: Tensor
    G: Tensor
    T: Tensor | None

    def __len__(self) -> int:
        return len(self.norms)

    @property
    def S(self) -> Tensor:
        """The unit directions (M, m)."""
        return self.buffer.S[: len(self)].mT

    @property
    def Y(self) -> Tensor:
        """The products (N, m) along the unit directions."""
        return self.buffer.Y[: len(self)].mT

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (N, M) of the matrix observed."""
        return self.buffer.Y.shape[1], self.buffer.S.shape[1]

    @cached_property
    def gram_eigh(self) -> tuple[Tensor, Tensor]:
        """μ, Z with SᵀS = Z diag(μ) Zᵀ, ascending; what is zero to rounding is exactly zero.

        A Gram matrix knows its small eigenvalues to eps·μ₁ only; where that could matter, they come from the singular
        values of S itself, which a QR gives to eps²·μ₁.
        """
        mu, Z = torch.linalg.eigh(self.G)
        eps = torch.finfo(self.buffer.S.dtype).eps
        if len(self) and float(mu[0]) < 1e-4 * float(mu[-1]):
            R = torch.linalg.qr(self.S, mode="r").R.to(self.G)
            _, sigma, Zt = torch.linalg.svd(R, full_matrices=True)
            sigma = torch.cat([sigma, sigma.new_zeros(len(self) - len(sigma))])
            sigma = torch.where(sigma < 8 * len(self) * eps * sigma[0], 0.0, sigma)
            mu, Z = sigma.flip(0) ** 2, Zt.mT.flip(1)
        return mu, Z

    @classmethod
    def empty(cls, N: int, M: int, like: Tensor, capacity: int = 16) -> Observations:
        """No observations yet of an (N, M) matrix, and room for `capacity`."""
        small = torch.zeros(0, 0, dtype=small_dtype(like.device), device=like.device)
        buffer = _Buffer(like.new_empty(0, M), like.new_empty(0, N), capacity)
        return cls(buffer, small[:0, 0], small, small if N == M else None)

    @classmethod
    def of(cls, S: Any, Y: Any) -> Observations:
        """The observations Y = B S; wrong shapes, dtypes, devices, zero directions and NaN are errors."""
        S, Y = _checked(as_real(S, "S"), as_real(Y, "Y"))
        norms = _norms(S, 0)
        rows, products = (S / norms).mT.contiguous(), (Y / norms).mT.contiguous()
        finite_columns(products.mT, "Y / |s|")
        columns = Tall(rows.mT)
        T = columns.gram(Tall(products.mT)) if S.shape[0] == Y.shape[0] else None
        return cls(_Buffer(rows, products, len(rows)), norms.to(columns.t(rows[0])), columns.gram(columns), T)

    def extend(self, s: Any, y: Any) -> Observations:
        """One more observation, in O(N m): a row is written, the Gram matrices grow by a row and a column."""
        s, y = as_real(s, "s", self.buffer.S), as_real(y, "y", self.buffer.Y)
        N, M = self.shape
        if s.shape != (M,) or y.shape != (N,):
            raise ValueError(f"expected s ({M},) and y ({N},), got {tuple(s.shape)} and {tuple(y.shape)}")
        same_place(s, self.buffer.S)
        same_place(y, self.buffer.Y)
        norm = _norms(s[:, None], len(self))[0]
        finite_columns(y[:, None], f"y of observation {len(self)}")
        buffer, m = self._room(), len(self)
        row, product = buffer.S[m], buffer.Y[m]
        torch.div(s, norm, out=row)
        torch.div(y, norm, out=product)
        buffer.used = m + 1
        old = Tall(buffer.S[:m].mT)
        along = old.t(row)
        G = _bordered(self.G, along, along, row @ row)
        T = self.T
        if T is not None:
            T = _bordered(T, old.t(product), Tall(buffer.Y[:m].mT).t(row), row @ product)
        return Observations(buffer, torch.cat([self.norms, norm[None].to(self.norms)]), G, T)

    def _room(self) -> _Buffer:
        """The buffer, if the next row is free (nobody else has extended these observations); else a larger copy."""
        m = len(self)
        if self.buffer.used == m < len(self.buffer.S):
            return self.buffer
        return _Buffer(self.buffer.S[:m], self.buffer.Y[:m], max(2 * m, 4))


def _bordered(A: Tensor, column: Tensor, row: Tensor, corner: Tensor) -> Tensor:
    """[[A, column], [rowᵀ, corner]]."""
    m = len(A)
    out = A.new_empty(m + 1, m + 1)
    out[:m, :m], out[:m, m], out[m, :m], out[m, m] = A, column, row, corner
    return out


def _checked(S: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    if S.ndim != 2 or Y.ndim != 2 or S.shape[1] != Y.shape[1]:
        raise ValueError(
            f"expected S (M, m) and Y (N, m) with one column an observation, got {tuple(S.shape)} and {tuple(Y.shape)}"
        )
    if 0 in S.shape or 0 in Y.shape:
        raise ValueError(
            f"expected at least one observation and one row, got S {tuple(S.shape)} and Y {tuple(Y.shape)}"
        )
    same_place(S, Y)
    if S.dtype.itemsize < 4:  # Gram matrices of half-precision columns would be noise
        S, Y = S.float(), Y.float()
    finite_columns(S, "S")
    finite_columns(Y, "Y")
    return S, Y


def _norms(S: Tensor, first: int) -> Tensor:
    """|s| of each column; safe against under- and overflow of the squares. A zero direction is an error."""
    norms = torch.linalg.vector_norm(S, dim=0)
    tiny, huge = torch.finfo(S.dtype).tiny ** 0.5, torch.finfo(S.dtype).max ** 0.5
    if not bool(((norms > tiny) & (norms < huge)).all()):
        finite_columns(S, "S")
        top = torch.linalg.vector_norm(S, ord=torch.inf, dim=0)
        if bool((top == 0).any()):
            index = first + int((top == 0).nonzero()[0])
            raise ValueError(f"S: direction {index} is zero, so its product says nothing; leave it out")
        norms = top * torch.linalg.vector_norm(S / top, dim=0)
        if not bool(torch.isfinite(norms).all()):
            raise ValueError(f"S: a direction is too long for {S.dtype}; divide it and its product by the same number")
    return norms
