"""Directions: few, each averaged over fresh data, and the spread over that data kept."""

from __future__ import annotations

import torch
from torch import Tensor

from infhess.curvature import Source

# Chunks of fresh data a direction: their spread is the noise. Fewer than 4 do not give intervals that hold.
CHUNKS = 8
# Numbers kept at full precision; beyond, deviations between chunks are kept in bfloat16, good to 0.4 % each.
FULL_PRECISION = 2**28


class Krylov:
    """q₁ random; q_{j+1} the mean product of q_j over C chunks of fresh data, made orthogonal to those before.

    T^c_ij = q_iᵀ y_j^c in double precision; what of it comes after the fact (i > j) needs the deviations y_j^c − ȳ_j,
    which are kept.
    """

    def __init__(self, start: Tensor, most: int) -> None:
        self.Q = start.new_zeros(most + 1, len(start))
        self.Q[0] = start / torch.linalg.vector_norm(start)
        small = CHUNKS * most * len(start) <= FULL_PRECISION
        self._storage = start.dtype if small else torch.bfloat16
        self._deviations: list[Tensor] = []
        self.T = torch.zeros(CHUNKS, most, most, dtype=torch.float64, device=start.device)
        self.beta = 0.0  # |ȳ_p − QQᵀȳ_p| of the newest direction
        self.residual = 0.0  # its square with the noise taken off
        self.points: list[int] = []

    def __len__(self) -> int:
        return len(self._deviations)

    @property
    def most(self) -> int:
        """Directions there is room for."""
        return len(self.Q) - 1

    def look(self, source: Source, wanted: int, batches: int) -> bool:
        """Products of the newest direction with fresh data; False where no new direction comes out of them."""
        j, before = len(self), source.data_points
        enough = min(wanted, source.population or wanted)
        Y = torch.stack([y for (y,) in source.products_over([self.Q[j]], enough, CHUNKS, batches)])
        if not bool(torch.isfinite(torch.linalg.vector_norm(Y, dim=1)).all()):
            raise ValueError(f"product {j} holds NaN or infinity; is the loss finite at these parameters?")
        self.points.append(source.data_points - before)
        mean = Y.mean(0)
        Y -= mean
        self._deviations.append(Y.to(self._storage))
        self._border(j, mean, Y)
        return self._next(j, mean, Y)

    def _border(self, j: int, mean: Tensor, deviation: Tensor) -> None:
        """Column j of every T^c, and row j for the products before it."""
        Q = self.Q[: j + 1]
        self.T[:, : j + 1, j] = (deviation @ Q.mT + Q @ mean).to(self.T)
        for i, old in enumerate(self._deviations[:-1]):
            self.T[:, j, i] = (old @ self.Q[j].to(old.dtype)).to(self.T)
        if j:  # the mean product of direction j−1 lies in the span up to q_j, at the height β along it
            self.T[:, j, j - 1] += self.beta

    def _next(self, j: int, mean: Tensor, deviation: Tensor) -> bool:
        Q = self.Q[: j + 1]
        length = float(torch.linalg.vector_norm(mean))
        rest = mean - Q.mT @ (Q @ mean)
        rest = rest - Q.mT @ (Q @ rest)
        self.beta = float(torch.linalg.vector_norm(rest))
        noise = deviation.square().sum() - (deviation @ Q.mT).square().sum()
        self.residual = self.beta**2 - float(noise) / (CHUNKS * (CHUNKS - 1))
        if j + 1 >= min(self.most, len(mean)) or self.beta <= 1e2 * torch.finfo(mean.dtype).eps * length:
            return False
        self.Q[j + 1] = rest / self.beta
        return True
