"""What every posterior over a matrix can do, whatever the prior."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from infhess import _draw
from infhess._checks import as_vectors, column_norms, count, finite, rounding
from infhess._precision import full_precision
from infhess.lowrank import Eigenpairs, Operator, SingularTriplets
from infhess.posterior.observations import Observations
from infhess.posterior.storage import write


class GivesPosterior(Protocol):
    """The part of a prior's interface that posteriors need."""

    def given(self, observations: Observations) -> Posterior:
        """The posterior."""


class Posterior(_draw.Rows):
    """p(B | Y, S): an operator `mean`, the variance of any uᵀBv, samples, the evidence, eigenpairs with error bars.

    Immutable: `extend` returns a new posterior and leaves this one unchanged.

    >>> import torch, infhess
    >>> S, B = torch.eye(3)[:, :2], torch.diag(torch.tensor([4.0, 2.0, 1.0]))
    >>> posterior = infhess.condition(infhess.Isotropic(mean=1.0, noise=0.1), S, B @ S)
    >>> values, vectors, std = posterior.eigh(2)
    >>> [f"{value:.2f} ± {deviation:.2f}" for value, deviation in zip(values, std)]
    ['3.97 ± 0.10', '1.99 ± 0.10']
    >>> u = torch.tensor([0.0, 0.0, 1.0])
    >>> float(posterior.variance(u, u))  # as before: nothing was seen there
    1.0
    >>> longer = posterior.extend(u, B @ u)
    >>> round(float(longer.variance(u, u)), 3)
    0.01

    """

    def __init__(self, prior: GivesPosterior, observations: Observations) -> None:
        self.prior, self.observations = prior, observations

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (N, M) of B."""
        return self.observations.shape

    @property
    def S(self) -> Tensor:
        """The directions (M, m) as given."""
        return self.observations.S * self.observations.norms.to(self.observations.S)

    @property
    def Y(self) -> Tensor:
        """The products (N, m) as given."""
        return self.observations.Y * self.observations.norms.to(self.observations.Y)

    def __len__(self) -> int:
        return len(self.observations)

    def __repr__(self) -> str:
        N, M = self.shape
        return f"{type(self).__name__}({N}×{M} matrix, {len(self)} observations, {self.prior})"

    @cached_property
    @full_precision
    def mean(self) -> Operator:
        """The posterior mean as an operator: `@`, `.T`, `.solve`, `.dense()`, `.to_scipy()`."""
        return self._mean()

    @full_precision
    def variance(self, u: Any, v: Any) -> Tensor:
        """The variance of uᵀBv: a scalar for vectors u (N,), v (M,); one per column for blocks (N, k), (M, k)."""
        return self._variance(u, v).to(self.observations.Y.dtype)

    def _variance(self, u: Any, v: Any) -> Tensor:
        """The same in double precision: a variance may over- or underflow in the dtype of the data."""
        N, M = self.shape
        like = self.observations.Y
        same = u is v and N == M
        u = as_vectors(u, "u", N, like)
        v = u if same else as_vectors(v, "v", M, like)
        if u.shape[1:] != v.shape[1:]:
            raise ValueError(f"expected as many u as v, got shapes {tuple(u.shape)} and {tuple(v.shape)}")
        left = u.reshape(N, -1)
        values = self._variances(left, left if same else v.reshape(M, -1)).clamp(min=0)
        return values[0] if u.ndim == 1 else values

    @full_precision
    def sample(self, V: Any, generator: torch.Generator | None = None) -> Tensor:
        """A draw of B @ V for a thin V (M, k) or a vector (M,), without an N×N array."""
        M = self.shape[1]
        V = as_vectors(V, "V", M, self.observations.Y)
        if not bool(finite(V).all()):
            raise ValueError("V: expected finite vectors, got NaN or infinity")
        size = float(V.abs().max()) if V.any() else 1.0  # squares of V will be computed
        draw = self._sample(V.reshape(M, -1) / size, generator) * size
        return draw[:, 0] if V.ndim == 1 else draw

    @full_precision
    def extend(self, s: Any, y: Any) -> Posterior:
        """The posterior with one more observation y = B s, in O(N m)."""
        return type(self)(self.prior, self.observations.extend(s, y))

    @full_precision
    def eigh(self, k: int) -> Eigenpairs:
        """The k largest eigenvalues of the mean's symmetric part; `.std` is that of uᵀBu for each vector u."""
        pairs = self.mean.eigh(k)
        return pairs._replace(std=self._variance(pairs.vectors, pairs.vectors).sqrt().to(pairs.values))

    @full_precision
    def svd(self, k: int) -> SingularTriplets:
        """The paper's reduction: the k largest singular values Σ and left singular vectors U of the mean."""
        return self.mean.svd(k)

    @full_precision
    def _columns(self, k: int = 10) -> dict[str, list[Any]]:
        """The k largest eigenvalues of the mean; if B is not square, its singular values, which have no interval."""
        k, (N, M) = count(k, "k"), self.shape
        if N != M:
            values = self.svd(min(k, N, M)).values
            return {"singular value": list(range(1, len(values) + 1)), "value": values.tolist()}
        values, _, std = self.eigh(min(k, N))
        std = torch.as_tensor(std)
        columns = {"value": values, "std": std, "low": values - 1.96 * std, "high": values + 1.96 * std}
        return {"eigenvalue": list(range(1, len(values) + 1))} | {name: c.tolist() for name, c in columns.items()}

    def as_dict(self, *, k: int = 10) -> dict[str, Any]:
        """Plain numbers and lists: the k largest eigenvalues of the mean, with 95 % posterior intervals."""
        about = {"shape": list(self.shape), "observations": len(self), "prior": str(self.prior)}
        return {**self._columns(k), **about}

    def to_pandas(self, *, k: int = 10) -> Any:
        """A DataFrame of the k largest eigenvalues of the mean, with 95 % posterior intervals; needs pandas."""
        return _draw.frame(self._columns(k))

    def plot(self, ax: Any = None, *, k: int = 10) -> Any:
        """Plot the k largest eigenvalues of the mean, with 95 % posterior intervals of the curvature along their vectors.

        Needs matplotlib; returns the axes.
        """
        label = "95 % of the posterior" if self.shape[0] == self.shape[1] else "mean"
        return _draw.picture(self._columns(k), ax, label)

    def save(self, path: Any) -> None:
        """Write prior and observations to a file in the safetensors format (no pickle); `infhess.load` reads it."""
        write(path, self.prior, self.observations)

    @abstractmethod
    def _mean(self) -> Operator: ...

    @abstractmethod
    def _variances(self, u: Tensor, v: Tensor) -> Tensor: ...

    @abstractmethod
    def _sample(self, V: Tensor, generator: torch.Generator | None) -> Tensor: ...

    @abstractmethod
    def log_evidence(self) -> Tensor:
        """log p(Y | S, prior), a scalar tensor."""


class ContradictionError(ValueError):
    """Exact products that no matrix (or no symmetric matrix) could have given.

    >>> import torch, infhess
    >>> S = torch.tensor([[1.0, 1.0], [0.0, 0.0]])  # the same direction twice
    >>> try:
    ...     infhess.condition(infhess.Isotropic(), S, torch.tensor([[1.0, 2.0], [0.0, 0.0]])).mean
    ... except infhess.ContradictionError:
    ...     print("two products of one direction that differ cannot both be exact")
    two products of one direction that differ cannot both be exact
    """


def agree(Y: Tensor, null: Tensor, data: torch.dtype) -> None:
    """Exact products Y of directions S with S @ null = 0 must have Y @ null = 0, or they contradict each other.

    Each combination is compared with the rounding of the columns that it combines.
    """
    if not null.shape[1]:
        return
    null = null.to(Y)
    misfit = column_norms(Y @ null)
    size = column_norms(Y) @ null.abs()
    bad = misfit > 100 * rounding(data, len(null)) * size
    if bool(bad.any()):
        worst = null[:, int(bad.nonzero()[0])]
        raise ContradictionError(
            f"exact products contradict each other (observation {int(worst.abs().argmax())}): directions that depend on each "
            "other have products that do not; give a noise level above 0, or leave one out"
        )


NO_EVIDENCE = (
    "log_evidence is not defined for exact products (noise 0): the density is singular; give a noise level above 0"
)
