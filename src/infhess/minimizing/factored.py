"""P² for weights that form a matrix: the inverse of a Kronecker product, from gradients of slices of the data."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.lowrank.orthonormal import least_squares
from infhess.minimizing.pool_curvature import Inverse, PoolCurvature

# Rounds of the estimate, alternating between the factors; eigenvalues below this share of the largest are rounding.
ROUNDS, SMALLEST = 2, 1e-8
# Products that scale and shift are fitted to, half of them along flat directions.
PROBES = 4


def matrix_of(shapes: list[torch.Size]) -> tuple[int, int] | None:
    """The weights as one matrix, if all tensors share their first dimension: weight and bias of a layer become its columns."""
    if len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
        return None
    rows = shapes[0][0]
    return rows, sum(shape.numel() // rows for shape in shapes)


class Factors(NamedTuple):
    """left ⊗ right: both eigenbases, and all products of eigenvalues as a matrix."""

    U: Tensor
    V: Tensor
    values: Tensor

    def times(self, X: Tensor, scale: Tensor) -> Tensor:
        """X in both bases, multiplied entrywise by `scale`, and transformed back."""
        return self.U @ ((self.U.mT @ X @ self.V) * scale) @ self.V.mT


def factors_of(G: Tensor) -> Factors:
    """Factors of the covariance of matrices G (S, k, d): maximum likelihood for a matrix normal (Dutilleul 1999).

    At an optimum the covariance of gradients is about the curvature of the loss, up to scale: the Fisher matrix.
    """
    S, k, d = G.shape
    flat = G.permute(1, 0, 2).reshape(k, -1)
    left = flat @ flat.mT
    for _ in range(ROUNDS):
        A = (_root(left) @ flat).view(k * S, d)
        right = A.mT @ A / (S * k)
        B = (G.reshape(-1, d) @ _root(right)).view(S, k, d).permute(1, 0, 2).reshape(k, -1)
        left = B @ B.mT / (S * d)
    (u, U), (v, V) = _eigh(left), _eigh(right)
    return Factors(U, V, u[:, None] * v)


def _eigh(C: Tensor) -> tuple[Tensor, Tensor]:
    values, U = torch.linalg.eigh(C)
    return values.clamp(min=max(SMALLEST * float(values[-1]), 1e-300)), U


def _root(C: Tensor) -> Tensor:
    """C^{−½}."""
    values, U = _eigh(C)
    return U / values.sqrt() @ U.mT


class Layout:
    """Converts flat vectors to a matrix of the columns of all tensors, and back."""

    def __init__(self, shapes: list[torch.Size]) -> None:
        self._rows, self._sizes = shapes[0][0], [shape.numel() for shape in shapes]

    def matrix(self, v: Tensor) -> Tensor:
        """(..., N) as (..., rows, columns)."""
        parts = torch.split(v, self._sizes, -1)
        return torch.cat([p.reshape(*v.shape[:-1], self._rows, -1) for p in parts], -1)

    def flat(self, X: Tensor) -> Tensor:
        """A matrix as a vector."""
        parts = torch.split(X, [n // self._rows for n in self._sizes], 1)
        return torch.cat([p.reshape(-1) for p in parts])


def factored_inverse(source: Hessian, batch: Batch, slices: int, curvature: PoolCurvature) -> Inverse:
    """(a · left ⊗ right + ρ)⁻¹, with a and ρ fitted to a few products; the shift ρ represents L2 in the loss."""
    layout = Layout([p.shape for p in source.flat.params])
    G = layout.matrix(source.slice_gradients(batch, slices).to(curvature.wide).mT)
    factors = factors_of(G - G.mean(0))
    a, rho = _fitted(factors, layout, curvature)
    if not a > 0:
        return Inverse(lambda v: v, True)
    scale = 1 / (a * factors.values + max(rho, SMALLEST * a * float(factors.values.max())))
    return Inverse(lambda v: layout.flat(factors.times(layout.matrix(v), scale)), False)


def _fitted(factors: Factors, layout: Layout, curvature: PoolCurvature) -> tuple[float, float]:
    """a and ρ with zᵀHz ≈ a zᵀ(left ⊗ right)z + ρ|z|², for random z and for z weighted towards directions of low variance."""
    g = torch.Generator().manual_seed(0)
    rows, seen = [], []
    for i in range(PROBES):
        z = torch.randn(factors.values.shape, generator=g, dtype=factors.values.dtype).to(factors.values)
        z = factors.times(z, factors.values ** (-0.5 * (i % 2)))
        size = float(z.square().sum())
        rows.append([float((z * factors.times(z, factors.values)).sum()) / size, 1.0])
        seen.append(float(z.reshape(-1) @ layout.matrix(curvature.product(layout.flat(z))).reshape(-1)) / size)
    A, b = torch.tensor(rows, dtype=torch.float64), torch.tensor(seen, dtype=torch.float64)
    weight = 1 / b.abs().clamp(min=1e-300)
    a, rho = least_squares(A * weight[:, None], (b * weight)[:, None])[:, 0].tolist()
    return a, rho
