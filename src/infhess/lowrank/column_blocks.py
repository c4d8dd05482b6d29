"""A tall matrix kept as blocks of columns side by side, [A₁ A₂ …], never joined in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from infhess._checks import column_norms, small_dtype
from infhess.lowrank.pages import empty_rows

SLAB = 16384  # rows at a time: products of this size are exact enough in single precision, and fit into the cache
SMALL = 2.0**-90  # smaller sums may come from products that underflow in single precision


class ColumnBlocks:
    """[A₁ A₂ …] with Aᵢ (N, mᵢ): products with small matrices and Gram matrices, one pass over memory each.

    Small results (m×k) are in double precision whatever the dtype of the columns.

    >>> import torch
    >>> A = ColumnBlocks(torch.eye(3, 2), torch.ones(3, 1))
    >>> A.t(torch.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 6.0]
    """

    def __init__(self, *blocks: Tensor) -> None:
        self.blocks = blocks
        self.widths = [b.shape[1] for b in blocks]
        self.shape = (blocks[0].shape[0], sum(self.widths))
        self.dtype, self.device = blocks[0].dtype, blocks[0].device

    def __matmul__(self, c: Tensor) -> Tensor:
        """A @ c for a small c (m,) or (m, k), back in the dtype of the columns."""
        parts = torch.split((c[:, None] if c.ndim == 1 else c).to(self.dtype), self.widths)
        out = empty_rows(parts[0].shape[1], self.shape[0], self.blocks[0])  # one row of memory per column
        torch.mm(parts[0].mT, self.blocks[0].mT, out=out)
        for block, part in zip(self.blocks[1:], parts[1:]):
            out.addmm_(part.mT, block.mT)
        return out[0] if c.ndim == 1 else out.mT

    def t(self, v: Tensor) -> Tensor:
        """Aᵀ @ v for a long v (N,) or (N, k), in double precision."""
        return torch.cat([_product(block, v) for block in self.blocks])

    def slabs(self) -> Iterator[Tensor]:
        """Rows of A, SLAB at a time, the blocks side by side."""
        for parts in zip(*(torch.split(block, SLAB) for block in self.blocks)):
            yield parts[0] if len(parts) == 1 else torch.cat([part.mT for part in parts]).mT

    def scaled(self, d: Tensor) -> ColumnBlocks:
        """diag(d) @ A."""
        return ColumnBlocks(*(d[:, None] * block for block in self.blocks))

    def gram(self, other: ColumnBlocks) -> Tensor:
        """Aᵀ @ B, small."""
        return torch.cat([self.t(block) for block in other.blocks], dim=1)

    def lengths(self) -> Tensor:
        """|a| of each column, in double precision."""
        small = small_dtype(self.device)
        return torch.cat([column_norms(block).to(small) for block in self.blocks])

    def joined(self) -> Tensor:
        """The blocks in one tensor (N, m): a copy if there are several."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks, dim=1)


def _product(A: Tensor, v: Tensor) -> Tensor:
    """Aᵀ @ v, summed over slabs in double precision if v is a block."""
    small = small_dtype(A.device)
    whole = len(v) // SLAB * SLAB if v.ndim == 2 else 0
    rest: Tensor = (A[whole:].mT @ v[whole:]).to(small)
    if not whole:
        return rest if _held(rest, A.dtype) else _double_product(A, v)
    # One batched product: a loop would synchronise all threads at each slab.
    slabs = (x[:whole].reshape(whole // SLAB, SLAB, x.shape[1]) for x in (A, v))
    total: Tensor = torch.bmm(next(slabs).mT, next(slabs)).to(small).sum(0) + rest
    return total if _held(total, A.dtype) else _double_product(A, v)


def _double_product(A: Tensor, v: Tensor) -> Tensor:
    """Aᵀ @ v in double precision throughout, a slab at a time."""
    small = small_dtype(A.device)
    parts = zip(torch.split(A, SLAB), torch.split(v, SLAB))
    return torch.stack([a.to(small).mT @ b.to(small) for a, b in parts]).sum(0)


def _held(X: Tensor, dtype: torch.dtype) -> bool:
    """Whether sums of this precision are right: none has overflowed, or is so small that its terms may have underflowed."""
    size = X.abs()
    return dtype == X.dtype or bool(((size > SMALL) & (size < torch.inf)).all())
