"""What every matrix of this library can do, however it is stored; and a dense matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess._checks import as_vectors, count, finite_number
from infhess._precision import full_precision
from infhess.lowrank.block_krylov import block_krylov
from infhess.lowrank.exports import curvlinops_operator, gpytorch_operator
from infhess.lowrank.orthonormal import tall_svd


class Eigenpairs(NamedTuple):
    """Eigenvalues (descending), orthonormal vectors (N, k), and the standard deviation of each value if known."""

    values: Tensor
    vectors: Tensor
    std: Tensor | None = None


class SingularTriplets(NamedTuple):
    """Singular values (descending), left (N, k) and right (M, k) singular vectors."""

    values: Tensor
    vectors: Tensor
    right: Tensor


class SingularError(ValueError):
    """A system without a unique solution; the message names a remedy.

    >>> import torch, infhess
    >>> A = infhess.condition(infhess.Isotropic(), torch.eye(2)[:, :1], torch.tensor([[4.0], [0.0]])).mean
    >>> try:
    ...     A.solve(torch.ones(2))
    ... except infhess.SingularError:
    ...     print([round(v, 3) for v in A.solve(torch.ones(2), damping=1.0).tolist()])
    [0.2, 1.0]
    """


SINGULAR = (
    "this operator is singular to working precision, so it does not solve; pass damping=δ > 0 to solve (A + δI) x = v"
)


class Operator(ABC):
    """A matrix (N, M) known by its products: `A @ v`, `A @ V`, `A.T`, `A.solve(v)`, `A.dense()`, `A.to_scipy()`.

    >>> import torch, infhess
    >>> A = infhess.condition(infhess.Isotropic(mean=1.0), torch.eye(3)[:, :1], torch.tensor([[4.0], [0.0], [0.0]])).mean
    >>> isinstance(A, infhess.Operator), (A @ torch.ones(3)).tolist(), A.solve(torch.ones(3)).tolist()
    (True, [4.0, 1.0, 1.0], [0.25, 1.0, 1.0])
    """

    shape: tuple[int, int]
    like: Tensor  # an empty tensor that carries dtype and device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of input and output vectors."""
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        """The device of input and output vectors."""
        return self.like.device

    @abstractmethod
    def _product(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def _solve(self, v: Tensor, damping: float) -> Tensor: ...

    @property
    @abstractmethod
    def T(self) -> Operator:
        """The transpose."""

    def power(self, exponent: float) -> Operator:
        """Aᵖ of a symmetric positive definite operator, if its form allows it."""
        raise ValueError(f"power is not known for {type(self).__name__}; use .dense() and torch.linalg.eigh")

    @full_precision
    def eigh(self, k: int) -> Eigenpairs:
        """The k largest eigenvalues of the symmetric part (A + Aᵀ)/2, descending, and their vectors."""
        k, transposed, start = self._square_and(k, "eigh"), self.T, self._start(k)
        size = self._size(start)

        def symmetric(V: Tensor) -> Tensor:
            return (self._product(V) + transposed._product(V)) / (2 * size)

        values, vectors = block_krylov(symmetric, start, k)
        return Eigenpairs(values * size, vectors)

    @full_precision
    def svd(self, k: int) -> SingularTriplets:
        """The k largest singular values, descending, with left and right vectors."""
        k, transposed, start = count(k, "k", min(self.shape)), self.T, self._start(k)
        size = self._size(start)

        def square(V: Tensor) -> Tensor:
            return transposed._product(self._product(V) / size) / size

        _, V = block_krylov(square, start, k)
        U, values, zt = tall_svd(self._product(V))
        return SingularTriplets(values, U, V @ zt.mT)

    def _size(self, start: Tensor) -> float:
        """A unit for A in which squares neither underflow nor overflow."""
        return float(self._product(start).abs().max()) or 1.0

    def _start(self, k: int) -> Tensor:
        # A seed of its own: the result must neither depend on the global random state nor change it.
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self.shape[1], k, generator=generator, dtype=torch.float64).to(self.like)

    @full_precision
    def __matmul__(self, v: Any) -> Tensor:
        """A @ v for a vector (M,) or a block (M, k)."""
        return self._product(as_vectors(v, "v", self.shape[1], self.like))

    @full_precision
    def solve(self, v: Any, damping: float = 0.0) -> Tensor:
        """(A + damping·I)⁻¹ v for a vector or a block; a singular or rectangular A without damping is an error."""
        N, M = self.shape
        if N != M:
            raise SingularError(
                f"solve needs a square operator, got shape {self.shape}; use .dense() and least squares"
            )
        v = as_vectors(v, "v", N, self.like)
        return self._solve(v, finite_number(damping, "damping", least=0.0))

    @full_precision
    def dense(self) -> Tensor:
        """The whole (N, M) array: for tests and small matrices."""
        return self._product(torch.eye(self.shape[1], dtype=self.dtype, device=self.device))

    def to_scipy(self) -> Any:
        """A `scipy.sparse.linalg.LinearOperator` with products and transposed products (needs SciPy)."""
        import numpy as np
        from scipy.sparse.linalg import LinearOperator

        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype

        def floats(v: Any) -> Any:
            return np.asarray(v, dtype=dtype if np.asarray(v).dtype.kind in "biu" else None)

        def product(operator: Operator) -> Any:
            return lambda v: (operator @ floats(v)).cpu().numpy()

        forward, adjoint = product(self), product(self.T)
        return LinearOperator(self.shape, matvec=forward, matmat=forward, rmatvec=adjoint, rmatmat=adjoint, dtype=dtype)

    def to_curvlinops(self) -> Any:
        """A `curvlinops` linear operator over flat vectors, with its adjoint (needs curvlinops-for-pytorch)."""
        return curvlinops_operator(self)

    def to_linear_operator(self) -> Any:
        """A `linear_operator.LinearOperator`, for GPyTorch (needs linear_operator)."""
        return gpytorch_operator(self)

    def _square_and(self, k: int, what: str) -> int:
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"{what} needs a square matrix, got shape {self.shape}; svd(k) takes any shape")
        return count(k, "k", self.shape[0])


class Dense(Operator):
    """A matrix stored in full: the posterior mean under a dense prior mean.

    >>> import torch
    >>> Dense(2 * torch.eye(3)).solve(torch.ones(3)).tolist()
    [0.5, 0.5, 0.5]
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.shape = (matrix.shape[0], matrix.shape[1])
        self.like = matrix.new_empty(0)

    def _product(self, v: Tensor) -> Tensor:
        return self.matrix @ v

    @property
    def T(self) -> Dense:
        """The transpose."""
        return Dense(self.matrix.mT)

    def _solve(self, v: Tensor, damping: float) -> Tensor:
        eye = torch.eye(self.shape[0], dtype=self.dtype, device=self.device)
        return regular_solve(self.matrix + damping * eye, v, self.matrix.abs() + damping * eye, singular(self.dtype))

    @full_precision
    def eigh(self, k: int) -> Eigenpairs:
        """The k largest eigenvalues of the symmetric part, descending, and their vectors."""
        k = self._square_and(k, "eigh")
        values, vectors = torch.linalg.eigh((self.matrix + self.matrix.mT) / 2)
        return Eigenpairs(values.flip(0)[:k], vectors.flip(1)[:, :k])

    @full_precision
    def svd(self, k: int) -> SingularTriplets:
        """The k largest singular values, descending, with left and right vectors."""
        k = count(k, "k", min(self.shape))
        U, values, Vt = torch.linalg.svd(self.matrix, full_matrices=False)
        return SingularTriplets(values[:k], U[:, :k], Vt[:k].mT)


def singular(dtype: torch.dtype) -> float:
    """The relative size below which a singular value is zero to rounding in this dtype."""
    return 4 * torch.finfo(dtype).eps


def regular_solve(A: Tensor, b: Tensor, size: Tensor, least: float) -> Tensor:
    """A⁻¹b, or a `SingularError` if the smallest singular value of A is below `least`, of the order of rounding.

    `size` is the magnitude of the terms that were summed to A, entrywise. Rows and columns are divided by its largest
    entries, so that the units of the unknowns do not look like singularity, but cancellation does.
    """
    if A.shape[0] == 0:
        return b
    rows = size.amax(dim=1).clamp(min=torch.finfo(A.dtype).tiny)
    columns = (size / rows[:, None]).amax(dim=0).clamp(min=torch.finfo(A.dtype).tiny)
    scaled = A / rows[:, None] / columns
    if not torch.isfinite(scaled).all() or torch.linalg.svdvals(scaled)[-1] < least:
        raise SingularError(SINGULAR)
    vector = b.ndim == 1
    rhs = (b[:, None] if vector else b) / rows[:, None]
    x: Tensor = torch.linalg.solve(scaled, rhs) / columns[:, None]
    return x[:, 0] if vector else x
