"""The data: unit directions, the products observed along them, and small Gram matrices that grow row by row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from infhess._checks import LARGEST, as_real, column_norms, finite, finite_columns, rounding, same_place, small_dtype
from infhess.lowrank import ColumnBlocks
from infhess.lowrank.column_blocks import SLAB
from infhess.lowrank.orthonormal import tall_qr
from infhess.lowrank.pages import empty_rows


class _Buffer:
    """Memory for observations, one per row: contiguous for products, and new ones are written in place."""

    def __init__(self, S: Tensor, Y: Tensor, capacity: int) -> None:
        self.S, self.Y = empty_rows(capacity, S.shape[1], S), empty_rows(capacity, Y.shape[1], Y)
        self.used = len(S)
        for kept, given in ((self.S, S), (self.Y, Y)):
            # For a transpose, copy a slab at a time: copying all at once is twice as slow.
            slab = given.shape[1] if given.stride(1) == 1 else SLAB
            for rows, columns in zip(torch.split(kept[: self.used], slab, 1), torch.split(given, slab, 1)):
                rows.copy_(columns)
            kept[self.used :] = 0  # touch the pages of a long row before it is needed


@dataclass(frozen=True, eq=False)
class Modes:
    """S = P diag(σ) Vᵀ with P = A F orthonormal (M, p), σ > 0 (p,), V (m, p); S `null` = 0 to rounding; whether A is S."""

    A: Tensor
    F: Tensor
    sigma: Tensor
    V: Tensor
    null: Tensor
    of_S: bool

    def split(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates Pᵀu in double precision, and the part of u outside the span."""
        inside = self.F.mT @ ColumnBlocks(self.A).t(u)
        return inside, u - ColumnBlocks(self.A) @ (self.F @ inside)


class Observations:
    """m observations y = B s, stored with |s| = 1: (s, y) and (cs, cy) say the same about B, under every noise model here.

    S (M, m) and Y (N, m) are the unit directions and their products, `norms` (m,) the lengths that were divided out. The
    Gram matrices SS = SᵀS, SY = SᵀY and YY = YᵀY, in double precision, are computed on first use; from then on each grows
    by a row with every further observation, and is never recomputed.
    """

    def __init__(
        self,
        buffer: _Buffer,
        norms: Tensor,
        grams: dict[str, Tensor] | None = None,
        given: torch.dtype | None = None,
    ) -> None:
        self.buffer, self.norms = buffer, norms
        self.given = given or buffer.Y.dtype  # dtype of the products as given: half precision has rounded them
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
    def SS(self) -> Tensor:
        """SᵀS."""
        return self._gram("SS")

    @property
    def SY(self) -> Tensor:
        """SᵀY, for a square matrix."""
        return self._gram("SY")

    @property
    def YY(self) -> Tensor:
        """YᵀY."""
        return self._gram("YY")

    def _gram(self, pair: str) -> Tensor:
        if pair not in self._grams:
            left, right = (ColumnBlocks(getattr(self, name)) for name in pair)
            self._grams[pair] = left.gram(right)
        return self._grams[pair]

    @cached_property
    def modes(self) -> Modes:
        """The thin singular value decomposition of S: S = P diag(σ) Vᵀ with P = A F.

        A Gram matrix gives singular values only to √eps·σ₁. If they span a factor of more than a hundred, or directions repeat,
        they come from a QR of S itself, accurate to eps·σ₁. Those that are zero to rounding are left out, as `null`.
        """
        mu, V = torch.linalg.eigh(self.SS)
        if not len(self) or float(mu[0]) > 1e-4 * float(mu[-1]):
            sigma = mu.sqrt()
            return Modes(self.S, V / sigma, sigma, V, V[:, :0], True)
        Q, R = tall_qr(self.S)
        U, sigma, Vt = torch.linalg.svd(R, full_matrices=True)
        keep = sigma > rounding(self.S.dtype, len(self)) * sigma[0]
        p = int(keep.sum())
        return Modes(Q, U[:, :p], sigma[:p], Vt[:p].mT, Vt[p:].mT, False)

    @classmethod
    def empty(cls, N: int, M: int, like: Tensor, capacity: int = 16) -> Observations:
        """No observations of an (N, M) matrix yet, with room for `capacity`."""
        norms, like = torch.zeros(0, dtype=small_dtype(like.device), device=like.device), _single(like)
        return cls(_Buffer(like.new_empty(0, M), like.new_empty(0, N), capacity), norms)

    @classmethod
    def of(cls, S: Any, Y: Any) -> Observations:
        """The observations Y = B S; wrong shapes, dtypes or devices, zero directions and NaN raise errors."""
        S, Y = as_real(S, "S"), as_real(Y, "Y")
        given = Y.dtype
        S, Y = _checked(S, Y)
        # Copied first, so that norms and quotients run over rows of memory, whatever the layout of S and Y.
        buffer = _Buffer(S.mT, Y.mT, S.shape[1])
        norms = _norms(buffer.S.mT, 0)
        finite_columns(buffer.Y.mT, "Y")
        buffer.S.div_(norms[:, None])
        buffer.Y.div_(norms[:, None])
        _check_size(buffer.Y.mT)
        return cls(buffer, norms.to(small_dtype(S.device)), given=given)

    @classmethod
    def of_units(cls, S: Tensor, Y: Tensor, norms: Tensor, given: torch.dtype | None = None) -> Observations:
        """Observations that were already normalised, one per row: unit directions, their products, lengths."""
        if S.ndim != 2 or Y.ndim != 2 or not len(S) == len(Y) == len(norms) or S.dtype != Y.dtype:
            raise ValueError(
                f"rows of S {tuple(S.shape)}, Y {tuple(Y.shape)} and norms {tuple(norms.shape)} do not fit"
            )
        finite_columns(S.mT, "S")
        finite_columns(Y.mT, "Y")
        # Copy the lengths too: those of a file may be a view of it.
        return cls(_Buffer(S, Y, len(S)), norms.to(small_dtype(S.device), copy=True), given=given)

    def extend(self, s: Any, y: Any) -> Observations:
        """Add one observation, in O(N m): a row is written, and the Gram matrices in use grow by a row and a column."""
        s, y = as_real(s, "s", self.buffer.S), as_real(y, "y", self.buffer.Y)
        given = max(self.given, y.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        s, y = _single(s), _single(y)
        (N, M), m = self.shape, len(self)
        if s.shape != (M,) or y.shape != (N,):
            raise ValueError(f"expected s ({M},) and y ({N},), got {tuple(s.shape)} and {tuple(y.shape)}")
        same_place(s, self.buffer.S, "s and the directions before it")
        same_place(y, self.buffer.Y, "y and the products before it")
        if s.data_ptr() == y.data_ptr():
            y = y.clone()  # y may be the same tensor as s, which is divided in place
        norm, buffer = _norms(s[:, None], m)[0], self._room()
        torch.div(y, norm, out=buffer.Y[m])
        if not bool(torch.linalg.vector_norm(buffer.Y[m]) < LARGEST):
            if not bool(finite(buffer.Y[m])):
                raise ValueError(
                    f"y of step {m} holds NaN or infinity, for a direction of unit length; leave it out or fix it"
                )
            _check_size(buffer.Y[m][:, None])
        torch.div(s, norm, out=buffer.S[m])
        buffer.used = m + 1
        grams = {pair: _bordered(old, buffer, pair) for pair, old in self._grams.items()}
        return Observations(buffer, torch.cat([self.norms, norm[None].to(self.norms)]), grams, given)

    def spare(self) -> Tensor:
        """The place (M,) of the next direction: one written here is not copied by `extend`."""
        self.buffer = self._room()
        return self.buffer.S[len(self)]

    def _room(self) -> _Buffer:
        """The buffer, if its next row is free (nothing else has extended these observations); else a larger copy."""
        m = len(self)
        if self.buffer.used == m < len(self.buffer.S):
            return self.buffer
        return _Buffer(self.buffer.S[:m], self.buffer.Y[:m], max(2 * m, 4))


def _bordered(A: Tensor, buffer: _Buffer, pair: str) -> Tensor:
    """The Gram matrix A (m, m) of the first m rows, extended by the next row."""
    m, (left, right) = len(A), (getattr(buffer, name) for name in pair)
    out = A.new_empty(m + 1, m + 1)
    out[:m, :m] = A
    out[: m + 1, m] = left[: m + 1] @ right[m]
    out[m, :m] = out[:m, m] if pair[0] == pair[1] else right[:m] @ left[m]
    if not bool(torch.isfinite(out).all()):
        raise ValueError(f"products of {left.dtype} vectors overflow; divide the matrix by a number, or use float64")
    return out


def _check_size(Y: Tensor) -> None:
    """Check that products of unit directions are finite, and so are their squares in double precision."""
    if bool((torch.linalg.vector_norm(Y, dim=0) < LARGEST).all()):
        return
    finite_columns(Y, "Y / |s|")
    if Y.dtype == torch.float64:
        raise ValueError(f"Y / |s|: expected columns shorter than {LARGEST:g}, got a longer one; change the unit of B")


def _single(x: Tensor) -> Tensor:
    """At least single precision: Gram matrices of half-precision columns would be noise."""
    return x.float() if x.dtype.itemsize < 4 else x


def _checked(S: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    if S.ndim != 2 or Y.ndim != 2 or S.shape[1] != Y.shape[1]:
        raise ValueError(
            f"expected S (M, m) and Y (N, m) with one column an observation, got {tuple(S.shape)} and {tuple(Y.shape)}"
        )
    if 0 in S.shape or 0 in Y.shape:
        raise ValueError(
            f"expected at least one observation and one row, got S {tuple(S.shape)} and Y {tuple(Y.shape)}"
        )
    same_place(S, Y, "S and Y")
    return _single(S), _single(Y)


def _norms(S: Tensor, first: int) -> Tensor:
    """|s| of each column. A zero direction is an error."""
    norms = column_norms(S)
    if not bool(((norms > 0) & (norms < torch.inf)).all()):
        finite_columns(S, "S")
        if bool((norms == 0).any()):
            index = first + int((norms == 0).nonzero()[0])
            raise ValueError(f"S: direction {index} is zero, so its product says nothing; leave it out")
        raise ValueError(f"S: a direction is too long for {S.dtype}; divide it and its product by the same number")
    return norms
