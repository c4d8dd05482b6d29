"""The data: unit directions, the products observed along them, and the small Gram matrices, which grow by a row."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from infhess._checks import as_real, finite_columns, same_place, small_dtype
from infhess.lowrank import Tall


class _Buffer:
    """Room for observations, one a row: contiguous for products, and a further one is written in place."""

    def __init__(self, S: Tensor, Y: Tensor, capacity: int) -> None:
        # Written once here, so that the pages of a long row are there when the loop comes to it.
        self.S, self.Y = S.new_empty(capacity, S.shape[1]).zero_(), Y.new_empty(capacity, Y.shape[1]).zero_()
        self.used = len(S)
        self.S[: self.used], self.Y[: self.used] = S, Y


class Observations:
    """m observations y = B s, kept with |s| = 1: (s, y) and (cs, cy) say the same of B, for every noise model here.

    S (M, m) and Y (N, m) are the unit directions and their products, `norms` (m,) the lengths that were divided out. The
    Gram matrices G = SᵀS, T = SᵀY and YY = YᵀY, in double precision, are computed when first asked for; from then on each
    grows by a row with every further observation, and is never computed again.
    """

    def __init__(self, buffer: _Buffer, norms: Tensor, grams: dict[str, Tensor] | None = None) -> None:
        self.buffer, self.norms = buffer, norms
        self._grams = grams or {}

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

    @property
    def G(self) -> Tensor:
        """SᵀS."""
        return self._gram("SS")

    @property
    def T(self) -> Tensor:
        """SᵀY of a square matrix."""
        return self._gram("SY")

    @property
    def YY(self) -> Tensor:
        """YᵀY."""
        return self._gram("YY")

    def _gram(self, pair: str) -> Tensor:
        if pair not in self._grams:
            left, right = (Tall(getattr(self, name)) for name in pair)
            self._grams[pair] = left.gram(right)
        return self._grams[pair]

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
        norms = torch.zeros(0, dtype=small_dtype(like.device), device=like.device)
        return cls(_Buffer(like.new_empty(0, M), like.new_empty(0, N), capacity), norms)

    @classmethod
    def of(cls, S: Any, Y: Any) -> Observations:
        """The observations Y = B S; wrong shapes, dtypes, devices, zero directions and NaN are errors."""
        S, Y = _checked(as_real(S, "S"), as_real(Y, "Y"))
        norms = _norms(S, 0)
        buffer = _Buffer((S / norms).mT, (Y / norms).mT, S.shape[1])
        finite_columns(buffer.Y.mT, "Y / |s|")
        return cls(buffer, norms.to(small_dtype(S.device)))

    def extend(self, s: Any, y: Any) -> Observations:
        """One more observation, in O(N m): a row is written, and the Gram matrices in use grow by a row and a column."""
        s, y = as_real(s, "s", self.buffer.S), as_real(y, "y", self.buffer.Y)
        N, M = self.shape
        if s.shape != (M,) or y.shape != (N,):
            raise ValueError(f"expected s ({M},) and y ({N},), got {tuple(s.shape)} and {tuple(y.shape)}")
        same_place(s, self.buffer.S)
        same_place(y, self.buffer.Y)
        norm = _norms(s[:, None], len(self))[0]
        finite_columns(y[:, None], f"y of step {len(self)}")
        buffer, m = self._room(), len(self)
        torch.div(s, norm, out=buffer.S[m])
        torch.div(y, norm, out=buffer.Y[m])
        buffer.used = m + 1
        grams = {pair: _bordered(old, buffer, pair) for pair, old in self._grams.items()}
        return Observations(buffer, torch.cat([self.norms, norm[None].to(self.norms)]), grams)

    def spare(self) -> Tensor:
        """The place (M,) of the next direction: one written here is not copied by `extend`."""
        self.buffer = self._room()
        return self.buffer.S[len(self)]

    def _room(self) -> _Buffer:
        """The buffer, if the next row is free (nobody else has extended these observations); else a larger copy."""
        m = len(self)
        if self.buffer.used == m < len(self.buffer.S):
            return self.buffer
        return _Buffer(self.buffer.S[:m], self.buffer.Y[:m], max(2 * m, 4))


def _bordered(A: Tensor, buffer: _Buffer, pair: str) -> Tensor:
    """The Gram matrix A (m, m) of the first m rows, grown by that of the next one with them."""
    m, (left, right) = len(A), (getattr(buffer, name) for name in pair)
    out = A.new_empty(m + 1, m + 1)
    out[:m, :m] = A
    out[: m + 1, m] = left[: m + 1] @ right[m]
    out[m, :m] = out[:m, m] if pair[0] == pair[1] else right[:m] @ left[m]
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
    norms: Tensor = torch.linalg.vector_norm(S, dim=0)
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
