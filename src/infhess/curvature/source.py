"""Where products come from: the interface of a source, and the two simplest ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from infhess._checks import as_real, as_vectors, callable_with, count
from infhess._precision import full_precision
from infhess._random import normal
from infhess.curvature.chunked_products import ChunkedProducts, even


class Source(ABC):
    """Noisy products with a square matrix, and noisy gradients to start from; counts what it computes.

    Attributes:
        size: the number of rows N.
        products: products taken so far.
        data_points: data points read so far.

    >>> import torch, infhess
    >>> source = infhess.Products(torch.diag(torch.tensor([2.0, 1.0])), gradient=lambda: torch.ones(2))  # a `Source`
    >>> source.matvec(torch.ones(2)).tolist(), source.gradient().tolist(), source.size, source.products
    ([2.0, 1.0], [1.0, 1.0], 2, 1)

    """

    size: int
    like: Tensor  # an empty tensor with the dtype and the device of the vectors
    products: int = 0
    data_points: int = 0
    exact: bool = False  # products have no noise: one says as much as many
    _points: int = 0  # data points per call, if known

    @abstractmethod
    def matvec(self, s: Tensor) -> Tensor:
        """A noisy product B s, a flat vector."""

    @abstractmethod
    def gradient(self) -> Tensor:
        """A noisy gradient, a flat vector."""

    @full_precision
    def product_and_gradient(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """A product and a gradient, from the same data if possible."""
        return self.matvec(s), self.gradient()

    @full_precision
    def gradient_and_product(self) -> tuple[Tensor, Tensor]:
        """A gradient g and the product B g, from the same data if possible."""
        g = self.gradient()
        return g, self.matvec(g)

    @full_precision
    def fresh_products(
        self, vectors: list[Tensor], points: int, chunks: int, batches: int = 1, *, forms: bool = False
    ) -> ChunkedProducts:
        """Products of each vector with `chunks` chunks of fresh data, with at least this many points and batches in total.

        With `forms` the numbers sᵀBs instead of the products.
        """
        repeats = max(1, round(points / (chunks * (self._points or POINTS_OF_A_CALL))))
        if self.exact:
            chunks = repeats = 1

        def mean(s: Tensor) -> Tensor:
            y = sum((self.matvec(s) for _ in range(repeats)), torch.zeros_like(s)) / repeats
            return (s @ y)[None] if forms else y

        return even([[mean(s) for s in vectors] for _ in range(chunks)], population_factor=0.0 if self.exact else 1.0)


# Points that a call counts as, if a source reads no data or does not say how much: 128 points are then one call per chunk.
POINTS_OF_A_CALL = 16


class Products(Source):
    """A source made of two callables, or of anything with `@`: a tensor, a NumPy array, a SciPy LinearOperator.

    Args:
        matvec: s ↦ noisy B s; or a square matrix or operator.
        gradient: () ↦ noisy gradient; if not given, standard normal vectors are used.
        size: N; may be left out if `matvec` has a shape.
        points: data points that one call reads, for counting.
        generator: random numbers for these vectors.

    If the gradient is a NumPy array, or the operator is not torch's, callables get NumPy vectors.

    >>> import torch
    >>> source = Products(torch.diag(torch.tensor([2.0, 1.0])))
    >>> source.matvec(torch.ones(2)).tolist(), source.products
    ([2.0, 1.0], 1)

    """

    def __init__(
        self,
        matvec: Callable[[Any], Any] | Any,
        gradient: Callable[[], Any] | None = None,
        size: int | None = None,
        *,
        points: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        operator: Any = matvec if hasattr(matvec, "shape") else None
        if operator is None:
            callable_with(matvec, "matvec", ["s"], "vector", "pass a function of a vector, or a matrix with @")
        if gradient is not None:
            callable_with(gradient, "gradient", [], "vector", "pass a function without arguments")
        if operator is not None:
            size = _square(operator, size)
        if isinstance(operator, Tensor) and operator.is_floating_point():
            operator = _single(operator)  # products of a half-precision matrix would be rounded
        if size is None:
            raise TypeError("size: expected the number of rows N, which a callable matvec does not tell; pass size=N")
        self.size, self._points, self._generator = count(size, "size"), points and count(points, "points"), generator
        self._matvec = (lambda s: operator @ s) if operator is not None else matvec
        self._gradient = gradient
        self.like, self.exact = _like(operator), _is_array(operator)
        # What the callables take: tensors of a dtype, or NumPy arrays. None: unknown before the first call.
        self._takes: torch.dtype | str | None = None
        if operator is not None:
            self._takes = operator.dtype if _is_torch(operator) else "numpy"

    @full_precision
    def matvec(self, s: Any) -> Tensor:
        """A noisy product B s."""
        s = as_vectors(s, "s", self.size, s.new_empty(0) if isinstance(s, Tensor) else self.like)
        version = s._version
        y = self._checked(self._call(s), "matvec").to(s)
        if s._version != version:
            raise ValueError("matvec: it has altered its argument in place; let it work on a copy, s.clone()")
        self.products += 1
        self.data_points += self._points
        return y

    def _call(self, s: Tensor) -> Any:
        if self._takes == "numpy":
            return self._matvec(s.detach().cpu().numpy().copy())
        if isinstance(self._takes, torch.dtype):
            return self._matvec(s.to(self._takes))
        try:
            return self._matvec(s)
        except TypeError as error:
            # The callable may have been written for NumPy, which was not known before.
            try:
                y = self._matvec(s.detach().cpu().numpy().copy())
            except (AttributeError, TypeError) as other:  # no: it was written for tensors, and fails within
                raise error from other
            self._takes = "numpy"
            return y

    @full_precision
    def gradient(self) -> Tensor:
        """A noisy gradient; a standard normal vector if none was given."""
        if self._gradient is None:
            return normal(self.size, like=self.like, generator=self._generator)
        g = self._gradient()
        self._takes = self._takes or (g.dtype if isinstance(g, Tensor) else "numpy")
        self.data_points += self._points
        return self._checked(g, "gradient")

    def _checked(self, x: Any, name: str) -> Tensor:
        vector = as_real(x, name)
        if vector.shape != (self.size,):
            raise ValueError(f"{name}: expected a vector of shape ({self.size},), got {tuple(vector.shape)}")
        return _single(vector)


def as_source(source: Any, generator: torch.Generator | None = None) -> Source:
    """The source itself, or a source made of anything with `@`."""
    if isinstance(source, Source):
        return source
    if hasattr(source, "shape") and hasattr(type(source), "__matmul__"):
        return Products(source, generator=generator)
    wrapped = "; wrap a function v -> Av: Products(function, size=N), or a loss: Hessian(loss, params, batches)"
    remedy = wrapped if callable(source) else ""
    raise TypeError(
        f"source: expected a source such as infhess.Products, or a matrix with @, got {type(source).__name__}{remedy}"
    )


def _square(operator: Any, size: int | None) -> int:
    shape = tuple(operator.shape)
    if len(shape) != 2 or shape[0] != shape[1] or size not in (None, shape[0]):
        raise ValueError(f"expected a square matrix{'' if size is None else f' of {size} rows'}, got shape {shape}")
    return int(shape[0])


def _is_array(operator: Any) -> bool:
    """Whether it is an array in memory, of torch or NumPy: an operator may draw data for each product."""
    return isinstance(operator, Tensor) or hasattr(operator, "__array_interface__")


def _is_torch(operator: Any) -> bool:
    return isinstance(getattr(operator, "dtype", None), torch.dtype)


def _like(operator: Any) -> Tensor:
    """An empty tensor with the operator's device and dtype, in at least single precision."""
    if operator is None or not _is_torch(operator):
        return torch.empty(0, dtype=torch.float64)
    like = as_real(torch.empty(0, dtype=operator.dtype, device=getattr(operator, "device", "cpu")), "matrix")
    return _single(like)


def _single(x: Tensor) -> Tensor:
    """The tensor in at least single precision."""
    return x.float() if x.dtype.itemsize < 4 else x
