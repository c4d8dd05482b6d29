"""Sources that the optimizer estimates from: a few batches together, and any source in another scaling."""

from __future__ import annotations

import torch
from torch import Tensor

from infhess.curvature.batch_curvature import BatchCurvature
from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch, size_of, sliced
from infhess.curvature.source import Source
from infhess.lowrank.orthonormal import least_squares

# Up to this many parameters the graphs of all batches are kept for further products; otherwise they are rebuilt for each.
KEEP_GRAPHS = 100_000


class Pool(Source):
    """The mean curvature of a few batches; its gradients are those of slices of the batches, in turn.

    All directions see the same matrix: the products are consistent with each other, which for few points matters more than
    fresh data. Counting is left to the underlying source.
    """

    def __init__(self, source: BatchSource, batches: list[Batch], slices: int) -> None:
        self.source, self.batches, self.size, self.like = source, batches, source.size, source.like
        self.weights = [source.points_of(b) / sum(map(source.points_of, batches)) for b in batches]
        self._kept = [source.local(b) for b in batches] if self.size <= KEEP_GRAPHS else None
        self._slices, self._next = self._cut(slices), 0
        self._directions: list[Tensor] = []
        self.forms: list[Tensor] = []  # one column per product: sᵢᵀ Bₐ s for each batch a and the directions so far

    def _cut(self, slices: int) -> list[Batch]:
        first = self._local(0)
        if not self.source.split or first.forward_trace.batch_statistics or len(self.batches) >= slices:
            return self.batches
        return sliced(self.batches, min(slices, sum(map(size_of, self.batches))))

    def _local(self, i: int) -> BatchCurvature:
        return self.source.local(self.batches[i]) if self._kept is None else self._kept[i]

    def gradient(self) -> Tensor:
        """The gradient of the next slice."""
        self._next += 1
        return self.source.local(self._slices[(self._next - 1) % len(self._slices)]).gradient()

    def matvec(self, s: Tensor) -> Tensor:
        """The product with the mean matrix of all batches."""
        self._directions.append(s.clone())
        S, y = torch.stack(self._directions, 1), torch.zeros_like(s)
        forms = []
        for i, weight in enumerate(self.weights):
            product = self.source.product(self._local(i), s)
            forms.append(S.mT @ product)
            y += weight * product
        self.products += 1
        self.forms.append(torch.stack(forms))
        return y

    def spread(self, S: Tensor, U: Tensor) -> Tensor:
        """The standard error of uᵀBu over batches (standard deviation over √batches), for each column of U.

        uᵀBₐu is computed from the products taken, with u projected on the span of S. NaN for a single batch.
        """
        n, m = len(self.batches), len(self.forms)
        if n < 2:
            return U.new_full((U.shape[1],), torch.nan)
        T = torch.zeros(n, m, m, dtype=torch.float64, device=U.device)
        for j, form in enumerate(self.forms):
            T[:, : j + 1, j] = T[:, j, : j + 1] = form.to(T)
        C = least_squares(S.to(T), U.to(T))
        C = C / torch.linalg.vector_norm(S.to(T) @ C, dim=0).clamp(min=1e-300)
        curvatures = torch.einsum("ij,aik,kj->aj", C, T, C)
        weights = torch.tensor(self.weights).to(T)[:, None]
        mean = (weights * curvatures).sum(0)
        variance = (weights.square() * (curvatures - mean).square()).sum(0) * n / (n - 1)
        return variance.sqrt()


class Blockwise(Source):
    """The diagonal blocks of a batch's curvature: one product per block, all on the graph of one fresh batch.

    In nets the curvature between layers is as large as that within, and would dominate a product over all of them.
    """

    def __init__(self, source: BatchSource, sizes: list[int]) -> None:
        self.source, self.sizes, self.size, self.like = source, sizes, source.size, source.like

    def matvec(self, s: Tensor) -> Tensor:
        """Each block times its own slice of s."""
        return self._products(self.source.local(self.source.draw()), s)

    def gradient(self) -> Tensor:
        """The gradient of a fresh batch."""
        return self.source.gradient()

    def product_and_gradient(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Both from the same batch."""
        local = self.source.local(self.source.draw())
        return self._products(local, s), local.gradient()

    def _products(self, local: BatchCurvature, s: Tensor) -> Tensor:
        out, start = torch.zeros_like(s), 0
        for n in self.sizes:
            here = slice(start, start + n)
            alone = torch.zeros_like(s)
            alone[here] = s[here]
            if bool(alone.any()):
                out[here] = self.source.product(local, alone)[here]
            start += n
        return out


class ScaledSource(Source):
    """R B R instead of B: a source in the coordinates R⁻¹w."""

    def __init__(self, source: Source, root: Tensor) -> None:
        self.source, self.root, self.size, self.like = source, root, source.size, source.like

    def matvec(self, s: Tensor) -> Tensor:
        """R B R s."""
        return self.root * self.source.matvec(self.root * s)

    def gradient(self) -> Tensor:
        """R g."""
        return self.root * self.source.gradient()

    def product_and_gradient(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """R B R s and R g, from the same data if possible."""
        y, g = self.source.product_and_gradient(self.root * s)
        return self.root * y, self.root * g
