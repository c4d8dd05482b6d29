"""The Hessian of a pool of points at the present parameters, and inverses of a part of it as preconditioners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature.batch_curvature import COLUMNS, BatchCurvature, BatchHessian
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, size_of
from infhess.preconditioners.build import NEGATIVE, blocked

# Points times columns of a block per pass: on small data most of a pass is PyTorch's overhead.
AT_ONCE = 2**18
# If the ratio of smallest to largest pivot of a Cholesky factor is above this, rounding does not matter.
WELL_CONDITIONED = 1e-5

Apply = Callable[[Tensor], Tensor]


class PoolCurvature:
    """Products with the mean Hessian of chunks of data at the present parameters.

    Args:
        most: points whose graphs may be kept between products, or multiplied by several columns at once.

    """

    def __init__(self, source: Hessian, chunks: list[Batch], most: float, wide: torch.dtype) -> None:
        self.source, self.chunks, self.wide = source, chunks, wide
        sizes = [source.points_of(c) for c in chunks]
        self.points, self._shares = sum(sizes), [n / sum(sizes) for n in sizes]
        self._columns = max(COLUMNS, int(min(most, AT_ONCE) / max(sizes)))
        self._kept = list(map(self._local, range(len(chunks)))) if self.points <= most else None

    def _local(self, i: int) -> BatchCurvature:
        local = self.source.at(self.chunks[i], i)
        local.points = self.source.points_of(self.chunks[i])
        if isinstance(local, BatchHessian):
            local.columns = self._columns
        return local

    def _locals(self) -> Iterator[tuple[float, BatchCurvature]]:
        each = map(self._local, range(len(self.chunks))) if self._kept is None else iter(self._kept)
        return zip(self._shares, each)

    @cached_property
    def loss(self) -> float:
        """The mean loss of the pool, if graphs of exact products are kept."""
        return sum(share * local.value for share, local in self._locals() if isinstance(local, BatchHessian))

    @cached_property
    def gradient(self) -> Tensor:
        """The mean gradient of the pool."""
        return self._mean(lambda local: local.gradient())

    def _mean(self, of: Callable[[BatchCurvature], Tensor]) -> Tensor:
        """Mean over chunks, weighted by points."""
        parts = [of(local).to(self.wide) * share for share, local in self._locals()]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def product(self, v: Tensor) -> Tensor:
        """H v."""
        s = v.to(self.source.like)
        self.source.count_products(1, self.points)
        return self._mean(lambda local: local.product(s))

    def block(self, V: Tensor) -> Tensor:
        """H V, for a few columns."""
        S = V.to(self.source.like)
        self.source.count_products(V.shape[1], self.points)
        return self._mean(lambda local: local.block(S))


def graph_bytes(source: Hessian, chunk: Batch) -> int:
    """Bytes of the graph of a chunk; also checks, by a product, that the loss can be differentiated twice."""
    seen: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        if t.layout == torch.strided:  # a sparse one is data, not part of the graph
            seen[t.data_ptr()] = t.numel() * t.element_size()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        local = source.at(chunk, 0)
    local.product(torch.ones(source.size, dtype=source.like.dtype, device=source.like.device))
    source.count_products(1, source.points_of(chunk))
    return sum(seen.values())


class Inverse(NamedTuple):
    """P² ≈ H⁻¹, whether curvature was negative beyond rounding, and whether there was none at all."""

    apply: Apply
    negative: bool
    flat: bool = False


def dense_inverse(curvature: PoolCurvature) -> Inverse:
    """V diag(1/λ) Vᵀ of the dense Hessian, with eigenvalues at the level of rounding raised above it."""
    like = curvature.source.like
    H = curvature.block(torch.eye(curvature.source.size, dtype=like.dtype, device=like.device))
    H = (H + H.mT) / 2
    L, failed = torch.linalg.cholesky_ex(H)
    pivots = L.diagonal()
    if not failed and float(pivots.min()) > WELL_CONDITIONED * float(pivots.max()):
        return Inverse(lambda v: torch.cholesky_solve(v[:, None], L)[:, 0], False)
    values, V = torch.linalg.eigh(H)
    top = float(values[-1]) if float(values[-1]) > 0 else 1.0
    clipped = values.clamp(min=10 * torch.finfo(like.dtype).eps * top)
    flat = not float(values[-1]) > 0
    return Inverse(lambda v: V @ ((V.mT @ v) / clipped), bool(values[0] < -NEGATIVE * top), flat)


def nystrom_inverse(source: Hessian, chunks: list[Batch], rank: int, wide: torch.dtype) -> Inverse:
    """U(Σ+ρ)⁻¹Uᵀ + (I−UUᵀ)/ρ from Nyström's approximation along gradients of slices of the chunks."""
    points = sum(map(size_of, chunks))
    found = blocked(source, chunks, points, min(rank, source.size, points), None, None)
    scaling = found.scaling
    return Inverse(
        lambda v: scaling.factor * scaling(v.to(source.like)).to(wide), found.negative and len(found.values) > 0
    )
