"""Sources that read mini-batches, and the Hessian of a PyTorch loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from infhess._checks import as_vectors, count
from infhess._distributed import mean_over_processes, world_size
from infhess._precision import full_precision
from infhess.curvature.batch_curvature import BatchCurvature, BatchDifference, BatchHessian
from infhess.curvature.batch_products import BatchProducts
from infhess.curvature.batches import Batch
from infhess.curvature.chunked_products import ChunkedProducts, DrawnBatch, Question, Sums
from infhess.curvature.flat import Params
from infhess.curvature.loss import check_loss
from infhess.curvature.mapped import Mapped
from infhess.curvature.no_side_effects import twice_differentiable
from infhess.curvature.pooled import PooledBatch
from infhess.curvature.reading import FreshData
from infhess.curvature.slices import slice_gradients

Loss = Callable[..., Tensor]


class BatchSource(BatchProducts):
    """Products and gradients at the present parameters, each call on the next mini-batch.

    There are no side effects: parameters, `.grad`, buffers, training mode and the random state stay as they were.

    Sources of several `torch.distributed` processes are pooled: each process multiplies its own batches, and all get the mean.
    All have to make the same calls, with the same seeds. `source.pooled = False` keeps a source to its own process.

    >>> import torch, infhess
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> batches = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])]
    >>> source = infhess.Hessian(lambda x: (x @ w).square().mean() / 2, [w], batches)  # a `BatchSource`
    >>> source.matvec(torch.ones(2)).tolist(), source.matvec(torch.ones(2)).tolist()  # of the first batch, of the second
    ([1.0, 0.0], [0.0, 4.0])
    >>> source.products, source.data_points, w.grad
    (2, 2, None)

    """

    mapped: Mapped | None = None  # computes several batches in one pass

    @abstractmethod
    def fresh(self, batches: Iterable[Batch]) -> BatchSource:
        """The same matrix from other data, with its own counts."""

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
        """Product and gradient of the same mini-batch: the gradient comes for free."""
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
        """Check a flat vector before any data is read."""
        v = as_vectors(s, "s", self.size, self.like)
        if v.ndim != 1:
            raise ValueError(f"s: expected a vector of shape ({self.size},), got {tuple(v.shape)}")
        return v

    @full_precision
    def fresh_products(
        self, vectors: list[Tensor], points: int, chunks: int, batches: int = 1, *, forms: bool = False
    ) -> ChunkedProducts:
        """Products of each vector with `chunks` chunks of fresh data, with at least this many points and batches in total.

        With `forms` the numbers sᵀBs instead of the products. A chunk is several whole batches, or a slice of them joined if
        there are few. Batches whose points share statistics (BatchNorm in training mode) are not sliced: half a batch would
        have another loss.
        """
        width = 1 if forms else self.size

        def asked(s: Tensor) -> Question:
            return Question(lambda: s, (lambda y: (s @ y)[None]) if forms else (lambda y: y), width)

        draws = self.fresh_answers([asked(s) for s in vectors], points, chunks, batches)
        return draws[0] if len(draws) == 1 else draws[0]._replace(products=torch.cat([d.products for d in draws], 1))

    @full_precision
    def fresh_answers(
        self, questions: list[Question], points: int, chunks: int, batches: int = 1
    ) -> list[ChunkedProducts]:
        """What each question takes from its product, all over the same fresh data: they share the graph of each batch."""
        cut = self.split and not self.forward_trace.batch_statistics
        reading = FreshData(
            self.stream, self.draw, self.points_of, points, batches, world_size() if self._in_several else 1
        )
        sums = Sums(self.like, chunks, [q.width for q in questions])
        with twice_differentiable(self.flat.live):
            for group in self._groups(reading.chunks(chunks, cut), chunks):
                for c, points_of_it, products in self._answered(group, questions):
                    sums.add(c, points_of_it, (q.take(y) for q, y in zip(questions, products)))
                if cut and self.forward_trace.batch_statistics:
                    return self.fresh_answers(questions, points, chunks, batches)
        self.stream.warn_of_order(reading.read)
        return sums.draws(1.0 if self.forward_trace.random else reading.population_factor)

    def _groups(self, pieces: Iterator[tuple[int, Batch]], most: int) -> Iterator[list[DrawnBatch]]:
        """Batches that are multiplied in one pass, each with its own seed: several if the loss can be mapped, else one."""
        while group := [DrawnBatch(c, b, self.seed()) for c, b in islice(pieces, most if self._maps else 1)]:
            yield group

    @property
    def _maps(self) -> bool:
        seen = self.forward_trace
        plain = self.products > 0 and not (seen.random or seen.batch_statistics or self._in_several)
        return plain and self.mapped is not None and self.mapped.possible

    def _answered(
        self, group: list[DrawnBatch], questions: list[Question]
    ) -> Iterator[tuple[int, int, Iterable[Tensor]]]:
        """For each batch its chunk, its points, and the products that the questions ask for."""
        found = None
        if len(group) > 1 and self.mapped is not None:
            points = self.points_of(group[0].batch)  # all batches of a group have the same size
            count = partial(self.count_products, points=points)
            vectors = [q.vector() for q in questions]
            found = self.mapped.products([p.batch for p in group], group[0].seed, vectors, count)
        for i, piece in enumerate(group):
            if found is not None:
                yield piece.chunk, points, found[i]
            else:
                local = self.local(piece.batch, piece.seed)
                yield piece.chunk, local.points, (self.product(local, q.vector()) for q in questions)


class Hessian(BatchSource):
    """The Hessian of a loss, from mini-batches.

    Args:
        loss: batch ↦ scalar, the mean loss of the batch; it closes over the model.
        params: the parameters, with names (model.named_parameters(), a dict) or without. Others are held fixed; frozen or
            unused ones have zero curvature.
        batches: an iterable of batches, such as a DataLoader.
        products: "exact" (reverse over reverse), or "difference" for losses that cannot be differentiated twice.
        split: False if the loss is not a mean over data points: batches are then neither sliced nor joined.
        points: data points per batch, if it cannot be read from the batch; such batches are not sliced.
        generator: random numbers for the seeds of dropout masks, one seed per batch.

    >>> import torch
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> source = Hessian(lambda x: (x @ w).square().mean() / 2, [w], [torch.eye(2)])
    >>> source.matvec(torch.tensor([1.0, 0.0])).tolist(), source.products, source.data_points
    ([0.5, 0.0], 1, 2)

    """

    def __init__(
        self,
        loss: Loss,
        params: Params,
        batches: Iterable[Batch],
        *,
        products: str = "exact",
        split: bool = True,
        points: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        check_loss(loss, products)
        super().__init__(params, batches, split, generator)
        self.loss, self.kind, self._points = loss, products, 0 if points is None else count(points, "points")
        self.split = split and points is None
        self.mapped = Mapped(loss, self.flat) if products == "exact" else None

    def at(self, batch: Batch, seed: int) -> BatchCurvature:
        """The Hessian of one batch."""
        if self.kind == "difference":
            return BatchDifference(self.loss, batch, self.flat, seed)
        self._plain -= 1
        return BatchHessian(self.loss, batch, self.flat, seed, plain=self._plain >= 0)

    @full_precision
    def value_and_gradient(self, batch: Batch, seed: int) -> tuple[float, Tensor]:
        """Loss and flat gradient of one batch, without curvature; counted as a product, since it costs about as much."""
        points = self.points_of(batch)
        self.count_products(1, points)
        local: BatchCurvature = BatchDifference(self.loss, batch, self.flat, seed)
        local = PooledBatch(local, self._own_points(batch)) if self._in_several else local
        gradient = local.gradient()
        return local.value, gradient

    @full_precision
    def slice_gradients(self, batch: Batch, pieces: int) -> Tensor:
        """The gradients of slices of a batch, as columns; counted as one product with the whole batch."""
        self.count_products(1, self.points_of(batch))
        found = slice_gradients(self.loss, batch, pieces, self.flat, self.seed())
        return mean_over_processes(found) if self._in_several else found

    def fresh(self, batches: Iterable[Batch]) -> Hessian:
        """The same Hessian from other data."""
        made = Hessian(
            self.loss, self.flat.given, batches, products=self.kind, split=self.split, points=self._points or None,
            generator=self._generator,
        )  # fmt: skip
        made.pooled = self.pooled
        return made
