"""Block-diagonal operators: one matrix per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infhess._precision import full_precision
from infhess.lowrank.operator import Operator


class BlockDiagonal(Operator):
    """diag(A₁, A₂, …) of square operators.

    >>> import torch
    >>> from infhess.lowrank import LowRank
    >>> A = BlockDiagonal([LowRank(2.0, torch.ones(1, 1)), LowRank(4.0, torch.zeros(2, 1))])
    >>> (A @ torch.ones(3)).tolist(), A.power(-0.5).dense().diagonal()[1:].tolist()
    ([3.0, 4.0, 4.0], [0.5, 0.5])

    """

    def __init__(self, blocks: Sequence[Operator]) -> None:
        self.blocks = list(blocks)
        self.sizes = [b.shape[0] for b in self.blocks]
        self.shape = (sum(self.sizes), sum(self.sizes))
        self.like = self.blocks[0].like

    def _product(self, v: Tensor) -> Tensor:
        return torch.cat([b._product(part) for b, part in zip(self.blocks, torch.split(v, self.sizes))])

    @property
    def T(self) -> BlockDiagonal:
        """The transpose."""
        return BlockDiagonal([b.T for b in self.blocks])

    def _solve(self, v: Tensor, damping: float) -> Tensor:
        return torch.cat([b._solve(part, damping) for b, part in zip(self.blocks, torch.split(v, self.sizes))])

    @full_precision
    def power(self, exponent: float) -> Operator:
        """Each block to the power, for symmetric positive definite blocks."""
        return BlockDiagonal([b.power(exponent) for b in self.blocks])

    @full_precision
    def inverse(self) -> Operator:
        """The inverse of each block."""
        return self.power(-1.0)
