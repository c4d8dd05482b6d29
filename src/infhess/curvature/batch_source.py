"""Sources that read mini-batches: the Hessian and the Gauss–Newton matrix of a PyTorch loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from infhess._checks import as_vectors, count, generator_on
from infhess._precision import full_precision
from infhess.curvature.batches import Batch, Stream, size_of
from infhess.curvature.draws import Draw
from infhess.curvature.flat import Flat
from infhess.curvature.gauss_newton import GaussNewtonLocal, Pair
from infhess.curvature.local import DifferenceLocal, HessianLocal, Local
from infhess.curvature.reading import Reading
from infhess.curvature.slices import slice_gradients
from infhess.curvature.source import Source
from infhess.curvature.untouched import Watch

Loss = Callable[..., Tensor]


class BatchSource(Source):
    """Products and gradients at the present parameters, each call on the next mini-batch.

    Nothing but the result is left behind: parameters, `.grad`, buffers, training mode and the random state are as before.
    """

    def __init__(
        self, params: Iterable[Tensor], batches: Iterable[Batch], split: bool, generator: torch.Generator | None
    ) -> None:
        generator_on(generator)
        if not isinstance(split, bool):
            raise TypeError(f"split: expected True or False, got {split!r}")
        self.flat, self.stream, self.split = Flat(params), Stream(batches, self.points_of), split
        self.size, self.like = self.flat.size, self.flat.like
        self._generator = generator or torch.Generator().manual_seed(0)
        self.watch = Watch()  # what was seen of the loss so far
        self.product_points = 0  # data points that products were taken with, each time counted anew

    @abstractmethod
    def at(self, batch: Batch, seed: int) -> Local:
        """The curvature of one batch."""

    @abstractmethod
    def fresh(self, batches: Iterable[Batch]) -> BatchSource:
        """The same matrix from other data, with counts of its own."""

    def draw(self) -> Batch:
        """The next batch, counted."""
        batch = self.stream.next()
        self.data_points += self.points_of(batch)
        return batch

    def points_of(self, batch: Batch) -> int:
        """The data points of a batch."""
        return self._points or size_of(batch)

    @full_precision
    def local(self, batch: Batch) -> Local:
        """The curvature of one batch, with a seed of its own for its dropout."""
        local = self.at(batch, self.seed())
        local.points = self.points_of(batch)
        return local

    def seed(self) -> int:
        """For the dropout of a batch."""
        return int(torch.randint(2**62, (), generator=self._generator))

    @full_precision
    def matvec(self, s: Any) -> Tensor:
        """The product of the next mini-batch's matrix with a flat vector."""
        s = self._vector(s)
        return self.product(self.local(self.draw()), s)

    @full_precision
    def gradient(self) -> Tensor:
        """The gradient of the next mini-batch, flat."""
        return self.local(self.draw()).gradient()

    @full_precision
    def product_and_gradient(self, s: Any) -> tuple[Tensor, Tensor]:
        """Product and gradient of one and the same mini-batch: the gradient comes along with the product."""
        s = self._vector(s)
        local = self.local(self.draw())
        return self.product(local, s), local.gradient()

    @full_precision
    def gradient_and_product(self) -> tuple[Tensor, Tensor]:
        """The gradient g of the next mini-batch and its product with g."""
        local = self.local(self.draw())
        g = local.gradient()
        return g, self.product(local, g)

    def _vector(self, s: Any) -> Tensor:
        """A flat vector, checked before anything is read."""
        v = as_vectors(s, "s", self.size, self.like)
        if v.ndim != 1:
            raise ValueError(f"s: expected a vector of shape ({self.size},), got {tuple(v.shape)}")
        return v

    @full_precision
    def product(self, local: Local, s: Tensor) -> Tensor:
        """A product with the matrix of one batch, counted."""
        y = local.product(s)
        self._count(local, 1)
        return y

    @full_precision
    def products_of(self, local: Local, vectors: Sequence[Tensor]) -> list[Tensor]:
        """A product with the matrix of one batch, parameter by parameter, counted."""
        found = local.along(vectors)
        self._count(local, 1)
        return found

    @full_precision
    def block(self, local: Local, S: Tensor) -> Tensor:
        """Products with the matrix of one batch and each column of S, counted."""
        Y = local.block(S)
        self._count(local, S.shape[1])
        return Y

    def _count(self, local: Local, products: int) -> None:
        self.count_products(products, local.points)
        self.watch.random |= local.watch.random
        self.watch.batch_statistics |= local.watch.batch_statistics

    def count_products(self, products: int, points: int) -> None:
        """Note down products with so many points each."""
        self.products += products
        self.product_points += products * points

    @full_precision
    def fresh_products(
        self, vectors: list[Tensor], points: int, chunks: int, batches: int = 1, *, forms: bool = False
    ) -> Draw:
        """Products of each vector with `chunks` chunks of fresh data, so many points and batches in all at the least.

        With `forms` the numbers sᵀBs in the place of the products. A chunk is several batches as they came, or where there
        are few of them, a part of them joined. Batches whose points share statistics (BatchNorm in training mode) are not
        cut: half a batch is then another loss.
        """
        cut = self.split and not self.watch.batch_statistics
        reading = Reading(self.stream, self.draw, self.points_of, points, batches)
        sums = torch.zeros(chunks, len(vectors), 1 if forms else self.size).to(self.like)
        sizes = torch.zeros(chunks, dtype=torch.float64, device=self.like.device)
        for c, batch in reading.chunks(chunks, cut):
            local, n = self.local(batch), self.points_of(batch)
            for i, s in enumerate(vectors):
                y = self.product(local, s)
                sums[c, i] += n * (s @ y if forms else y)
            if cut and self.watch.batch_statistics:
                return self.fresh_products(vectors, points, chunks, batches, forms=forms)
            sizes[c] += n
        self.stream.warn_of_order(reading.read)
        sums, sizes = sums[sizes > 0], sizes[sizes > 0]
        unread = 1.0 if self.watch.random else reading.unread
        return Draw(sums / sizes[:, None, None].to(sums), sizes / sizes.sum(), unread)


class Hessian(BatchSource):
    """The Hessian of a loss, from mini-batches.

    Args:
        loss: batch ↦ scalar, the mean loss of the batch; it closes over the model.
        params: the parameters; what is not named is held fixed, what is named and frozen or unused has zero curvature.
        batches: an iterable of batches, such as a DataLoader.
        products: "exact" (reverse over reverse), or "difference" for losses that cannot be differentiated twice.
        split: False for a loss that is not a mean over points: batches are then neither sliced nor joined.
        points: data points of a batch, where it does not tell; such batches are not cut.
        generator: for the seeds of dropout masks, one a batch.

    >>> import torch
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> source = Hessian(lambda x: (x @ w).square().mean() / 2, [w], [torch.eye(2)])
    >>> source.matvec(torch.tensor([1.0, 0.0])).tolist(), source.products, source.data_points
    ([0.5, 0.0], 1, 2)

    """

    def __init__(
        self,
        loss: Loss,
        params: Iterable[Tensor],
        batches: Iterable[Batch],
        *,
        products: str = "exact",
        split: bool = True,
        points: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if not callable(loss):
            raise TypeError(f"loss: expected a callable from a batch to a scalar, got {type(loss).__name__}")
        if products not in ("exact", "difference"):
            raise ValueError(f'products: expected "exact" or "difference", got {products!r}')
        super().__init__(params, batches, split, generator)
        self.loss, self.kind, self._points = loss, products, 0 if points is None else count(points, "points")
        self.split = split and points is None

    def at(self, batch: Batch, seed: int) -> Local:
        """The Hessian of one batch."""
        kind = HessianLocal if self.kind == "exact" else DifferenceLocal
        return kind(self.loss, batch, self.flat, seed)

    @full_precision
    def gradient_at(self, batch: Batch, seed: int) -> Tensor:
        """The gradient of one batch without its curvature, flat; counted as a product, which costs about as much."""
        self.count_products(1, self.points_of(batch))
        return DifferenceLocal(self.loss, batch, self.flat, seed).gradient()

    @full_precision
    def slice_gradients(self, batch: Batch, pieces: int) -> Tensor:
        """The gradients of slices of a batch, as columns; counted as a product with all of it."""
        self.count_products(1, size_of(batch))
        return slice_gradients(self.loss, batch, pieces, self.flat, self.seed())

    def fresh(self, batches: Iterable[Batch]) -> Hessian:
        """The same Hessian from other data."""
        return Hessian(
            self.loss, self.flat.params, batches, products=self.kind, split=self.split, points=self._points or None,
            generator=self._generator,
        )  # fmt: skip


class GaussNewton(BatchSource):
    """The Gauss–Newton matrix Jᵀ H_L J of loss(model(inputs), targets): positive semi-definite for convex losses.

    Args:
        model: inputs ↦ outputs, one tensor, or an object that has it as its `logits`.
        loss: (outputs, targets) ↦ scalar, the mean over the batch.
        params: the parameters.
        batches: an iterable of (inputs, targets); or of mappings or dataclasses with an entry `labels`, `label`, `targets`,
            `target` or `y`, whose other entries the model takes as keywords.
        pair: batch ↦ (inputs, targets), for any other batch.
        split: False for a loss that is not a mean over points.
        generator: for the seeds of dropout masks.

    """

    def __init__(
        self,
        model: Callable[..., Any],
        loss: Loss,
        params: Iterable[Tensor],
        batches: Iterable[Batch],
        *,
        pair: Pair | None = None,
        split: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        if not callable(model) or not callable(loss):
            raise TypeError("expected a callable model and a callable loss: GaussNewton(model, loss, params, batches)")
        if pair is not None and not callable(pair):
            raise TypeError(f"pair: expected a callable from a batch to (inputs, targets), got {type(pair).__name__}")
        super().__init__(params, batches, split, generator)
        self.model, self.loss, self.pair = model, loss, pair

    def at(self, batch: Batch, seed: int) -> Local:
        """The Gauss–Newton matrix of one batch."""
        return GaussNewtonLocal(self.model, self.loss, batch, self.flat, seed, self.pair)

    def fresh(self, batches: Iterable[Batch]) -> GaussNewton:
        """The same matrix from other data."""
        return GaussNewton(
            self.model,
            self.loss,
            self.flat.params,
            batches,
            pair=self.pair,
            split=self.split,
            generator=self._generator,
        )
