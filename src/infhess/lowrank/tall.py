"""A tall matrix kept as blocks of columns side by side, [A₁ A₂ …], never joined in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infhess._checks import small_dtype


class Tall:
    """[A₁ A₂ …] with Aᵢ (N, mᵢ): products with small matrices and Gram matrices, one pass over memory each.

    Small results (m×k) are in double precision whatever the dtype of the columns.

    >>> import torch
    >>> A = Tall(torch.eye(3, 2), torch.ones(3, 1))
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
        parts = torch.split(c.to(self.dtype), self.widths)
        out: Tensor = self.blocks[0] @ parts[0]
        for block, part in zip(self.blocks[1:], parts[1:]):
            out += block @ part
        return out

    def t(self, v: Tensor) -> Tensor:
        """Aᵀ @ v for a long v (N,) or (N, k), in double precision."""
        return torch.cat([block.mT @ v for block in self.blocks]).to(small_dtype(self.device))

    def scaled(self, d: Tensor) -> Tall:
        """diag(d) @ A."""
        return Tall(*(d[:, None] * block for block in self.blocks))

    def gram(self, other: Tall) -> Tensor:
        """Aᵀ @ B, small."""
        return torch.cat([self.t(block) for block in other.blocks], dim=1)

    def joined(self) -> Tensor:
        """The blocks in one tensor (N, m): a copy where there are several."""
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks, dim=1)


def span(talls: Sequence[Tall]) -> Tall:
    """The distinct blocks of several tall matrices, side by side."""
    unique = {(b.data_ptr(), b.shape, b.stride()): b for tall in talls for b in tall.blocks}
    return Tall(*unique.values())
