"""P² as the optimizer applies it: in the base's own scaling, an identity less a few directions, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from infhess.lowrank import BlockDiagonal, LowRank, Operator


@dataclass(frozen=True)
class Block:
    """I − U diag(gain) Uᵀ on one block; `values` is the curvature along the columns of U."""

    U: Tensor  # (n, k)
    gain: Tensor  # (k,)
    values: Tensor  # (k,)


@dataclass(frozen=True)
class Scaling:
    """P² = factor · R (I − U diag(gain) Uᵀ) R, with U block-diagonal and R² the base's own scaling (None: I).

    Around sgd the gradient becomes P²g. Around Adam, which moves w by R²g, that step becomes R (I − U diag(gain) Uᵀ) R⁻¹ R²g.
    """

    blocks: list[Block]
    factor: float = 1.0
    root: Tensor | None = None

    @property
    def sizes(self) -> list[int]:
        """Parameters of each block."""
        return [len(b.U) for b in self.blocks]

    def __call__(self, g: Tensor) -> Tensor:
        """R (I − U diag(gain) Uᵀ) R g: P²g but for the factor."""
        g = g if self.root is None else self.root * g
        parts = [v - b.U @ (b.gain.to(v) * (b.U.mT @ v)) for b, v in zip(self.blocks, torch.split(g, self.sizes))]
        out = torch.cat(parts) if len(parts) > 1 else parts[0]
        return out if self.root is None else self.root * out

    def operator(self) -> Operator:
        """P² as an operator."""
        roots = [None] * len(self.blocks) if self.root is None else torch.split(self.root, self.sizes)
        parts = [self._block(b, r) for b, r in zip(self.blocks, roots)]
        return parts[0] if len(parts) == 1 else BlockDiagonal(parts)

    def _block(self, block: Block, root: Tensor | None) -> LowRank:
        core = -self.factor * torch.diag(block.gain)
        if root is None:
            return LowRank(self.factor, block.U, core)
        return LowRank(self.factor * root.square(), root[:, None] * block.U, core)


def identity(sizes: list[int], like: Tensor, root: Tensor | None = None) -> Scaling:
    """No direction at all: the base as it is."""
    zero = torch.zeros(0, dtype=torch.float64, device=like.device)
    return Scaling([Block(like.new_zeros(n, 0), zero, zero) for n in sizes], root=root)
