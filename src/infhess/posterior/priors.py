"""The four priors over a matrix, and conditioning them on products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from infhess._checks import LARGEST, as_real, finite_number, small_dtype
from infhess._precision import full_precision
from infhess.posterior.base import Posterior
from infhess.posterior.curvature_shaped import CurvatureShapedPosterior
from infhess.posterior.isotropic import IsotropicPosterior
from infhess.posterior.kronecker import KroneckerPosterior
from infhess.posterior.observations import Observations
from infhess.posterior.symmetric import SymmetricPosterior


@dataclass(frozen=True)
class Isotropic:
    """B0 = b0 I, Cov(B_ij, B_kl) = w0² [i=k][j=l], noise Cov(Y_ab, Y_cb) = λ0² |s_b|² [a=c]: the paper's choice.

    Args:
        mean: b0.
        scale: w0 > 0.
        noise: λ0 ≥ 0; 0 for exact products.

    >>> import torch, infhess
    >>> s, y = torch.tensor([[1.0], [0.0]]), torch.tensor([[3.0], [0.0]])
    >>> posterior = infhess.condition(infhess.Isotropic(mean=1.0, scale=2.0, noise=2.0), s, y)
    >>> posterior.mean.dense().tolist()  # halfway from b0 to what was seen: noise and scale are equal
    [[2.0, 0.0], [0.0, 1.0]]

    """

    mean: float = 0.0
    scale: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        _set(self, mean=finite_number(self.mean, "mean"))
        _set(self, scale=finite_number(self.scale, "scale", least=0.0, strict=True))
        _set(self, noise=finite_number(self.noise, "noise", least=0.0))
        for name, value in (("mean", abs(self.mean)), ("scale", self.scale), ("noise", self.noise)):
            _in_range(name, value)
        _in_range("noise / scale", self.noise / self.scale)

    @full_precision
    def given(self, observations: Observations) -> Posterior:
        """The posterior; for a rectangular matrix by the general formulas of `Kronecker`."""
        if observations.shape[0] != observations.shape[1]:
            return Kronecker(self.mean, self.scale, noise_left=self.noise).given(observations)
        return IsotropicPosterior(self, observations)


@dataclass(frozen=True)
class Symmetric(Isotropic):
    """B symmetric: Cov(B_ij, B_kl) = w0²/2 ([i=k][j=l] + [i=l][j=k]); mean and noise as in `Isotropic`.

    >>> import torch, infhess
    >>> posterior = infhess.condition(infhess.Symmetric(scale=1.0), torch.tensor([[1.0], [0.0]]), torch.tensor([[2.0], [1.0]]))
    >>> posterior.mean.dense().tolist()  # the first column was seen, so the first row is known too
    [[2.0, 1.0], [1.0, 0.0]]
    """

    @full_precision
    def given(self, observations: Observations) -> Posterior:
        """The posterior of a square matrix."""
        return SymmetricPosterior(self, _square(observations, "Symmetric"))


@dataclass(frozen=True)
class CurvatureShaped:
    """W ∝ Λ ∝ B, the noise of mini-batches: the posterior mean is ridge-Nyström.

    Args:
        ridge: ρ ≥ 0, squared ratio of noise to curvature (kurtosis factor / batch size); None: from the asymmetry of SᵀY.

    >>> import torch, infhess
    >>> S, B = torch.eye(3)[:, :2], torch.diag(torch.tensor([4.0, 2.0, 1.0]))
    >>> posterior = infhess.condition(infhess.CurvatureShaped(ridge=0.0), S, B @ S)
    >>> posterior.mean.dense().diagonal().tolist()  # nothing is made up where nothing was seen
    [4.0, 2.0, 0.0]

    """

    ridge: float | None = None

    def __post_init__(self) -> None:
        if self.ridge is not None:
            _set(self, ridge=finite_number(self.ridge, "ridge", least=0.0))

    @full_precision
    def given(self, observations: Observations) -> Posterior:
        """The posterior of a square matrix."""
        return CurvatureShapedPosterior(self, _square(observations, "CurvatureShaped"))


@dataclass(frozen=True, eq=False)
class Kronecker:
    """Cov(B_ij, B_kl) = W_ik V_jl and noise Cov(Y_ab, Y_cd) = L_ac (SᵀRS)_bb [b = d]: the paper's general case.

    Args:
        mean: B0, a float (times the identity), a vector (a diagonal) or an (N, M) matrix.
        left: W (N rows), a float, a vector or a matrix.
        right: V (M rows), likewise; by default as `left`.
        noise_left: L, likewise; 0 for exact products.
        noise_right: R, likewise; by default as `noise_left`.

    >>> import torch, infhess
    >>> prior = infhess.Kronecker(mean=0.0, left=torch.tensor([1.0, 4.0]), right=1.0, noise_left=1.0)
    >>> s, y = torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([[1.0], [1.0]])  # of a 2×3 matrix
    >>> posterior = infhess.condition(prior, s, y)
    >>> posterior.mean.dense()[:, 0].tolist()  # the second row varies more, so it follows the product further
    [0.5, 0.800000011920929]

    """

    mean: Any = 0.0
    left: Any = 1.0
    right: Any = None
    noise_left: Any = 0.0
    noise_right: Any = None

    def __post_init__(self) -> None:
        _set(self, mean=_factor(self.mean, "mean"))
        _set(self, left=_covariance(self.left, "left"), noise_left=_covariance(self.noise_left, "noise_left"))
        right = self.left if self.right is None else _covariance(self.right, "right")
        noise = self.noise_left if self.noise_right is None else _covariance(self.noise_right, "noise_right")
        _set(self, right=right, noise_right=noise)
        for name in ("left", "right"):
            if not bool(getattr(self, name).any()):
                raise ValueError(
                    f"{name}: expected a positive scale, got 0 throughout; the matrix would be known already"
                )

    @full_precision
    def given(self, observations: Observations) -> Posterior:
        """The posterior; the factors must fit the sizes of the data."""
        N, M = observations.shape
        for name, size in (("left", N), ("right", M), ("noise_left", N), ("noise_right", M)):
            factor = getattr(self, name)
            if factor.ndim and factor.shape[0] != size:
                raise ValueError(f"{name}: expected {size} rows for a {N}×{M} matrix, got shape {tuple(factor.shape)}")
        if (self.mean.ndim == 1 and (len(self.mean), len(self.mean)) != (N, M)) or (
            self.mean.ndim == 2 and tuple(self.mean.shape) != (N, M)
        ):
            raise ValueError(f"mean: expected a float, ({N},) or ({N}, {M}), got shape {tuple(self.mean.shape)}")
        return KroneckerPosterior(self, observations)

    def __repr__(self) -> str:
        names = ("mean", "left", "right", "noise_left", "noise_right")
        shown = (f"{n}={_shown(getattr(self, n))}" for n in names)
        return f"Kronecker({', '.join(shown)})"


Prior: TypeAlias = Isotropic | Symmetric | CurvatureShaped | Kronecker


@full_precision
def condition(prior: Prior, S: Any, Y: Any) -> Posterior:
    """The posterior over B given products Y = B S (with noise): S (M, m) directions, Y (N, m), one column per product.

    >>> import torch
    >>> B = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> S = torch.eye(3)[:, :2]
    >>> posterior = condition(Isotropic(mean=1.0, scale=1.0), S, B @ S)
    >>> posterior.mean.dense().tolist()
    [[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
    >>> [round(float(posterior.variance(e, e)), 3) for e in torch.eye(3)]
    [0.0, 0.0, 1.0]
    """
    return checked_prior(prior).given(Observations.of(S, Y))


def checked_prior(prior: Any) -> Prior:
    """Check that this is an instance of one of the four priors."""
    if not isinstance(prior, Isotropic | CurvatureShaped | Kronecker):
        raise TypeError(
            f"prior: expected Isotropic(…), Kronecker(…), Symmetric(…) or CurvatureShaped(…), got {prior!r}"
        )
    return prior


def _in_range(name: str, value: float) -> None:
    """Check that the square of a positive number is a finite, nonzero double."""
    if value and not 1 / LARGEST <= value <= LARGEST:
        raise ValueError(
            f"{name}: expected a number from {1 / LARGEST:g} to {LARGEST:g}, got {value:g}; change the unit"
        )


def _set(prior: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(prior, name, value)


def _square(observations: Observations, name: str) -> Observations:
    if observations.shape[0] != observations.shape[1]:
        raise ValueError(f"{name} is for square matrices, got products of a {observations.shape} one; use Kronecker")
    return observations


def _factor(x: Any, name: str) -> Tensor:
    """A float, vector or matrix as a double tensor of 0, 1 or 2 dimensions, checked to be finite."""
    if not isinstance(x, Tensor) and getattr(x, "ndim", 0) == 0 and not isinstance(x, list | tuple):
        x = torch.tensor(finite_number(x, name), dtype=torch.float64)
    factor = as_real(x, name)
    factor = factor.to(small_dtype(factor.device))
    if factor.ndim > 2 or factor.numel() == 0:
        raise ValueError(f"{name}: expected a float, a vector or a matrix, got shape {tuple(factor.shape)}")
    if not bool(torch.isfinite(factor).all()):
        raise ValueError(f"{name}: expected finite numbers, got NaN or infinity")
    _in_range(name, float(factor.abs().max()))
    return factor.clone()


def _covariance(x: Any, name: str) -> Tensor:
    """A factor, checked to be positive semi-definite."""
    factor = _factor(x, name)
    if factor.ndim < 2:
        if bool((factor < 0).any()):
            raise ValueError(f"{name}: expected numbers of at least 0, got {float(factor.min()):g}")
        return factor
    if factor.shape[0] != factor.shape[1] or not torch.allclose(
        factor, factor.mT, rtol=1e-8, atol=1e-12 * float(factor.abs().max())
    ):
        raise ValueError(f"{name}: expected a symmetric matrix, got shape {tuple(factor.shape)}, not symmetric")
    factor = (factor + factor.mT) / 2
    values = torch.linalg.eigvalsh(factor)
    if float(values[0]) < -1e-10 * float(values.abs().max()):
        raise ValueError(
            f"{name}: expected a positive semi-definite matrix, got one with the eigenvalue {float(values[0]):g}"
        )
    return factor


def _shown(factor: Tensor) -> str:
    return f"{float(factor):g}" if factor.ndim == 0 else "×".join(map(str, factor.shape))
