"""Priors over a matrix, and what products with it say."""

from infhess.posterior.base import ContradictionError, Posterior
from infhess.posterior.files import load
from infhess.posterior.observations import Observations
from infhess.posterior.priors import CurvatureShaped, Isotropic, Kronecker, Prior, Symmetric, checked_prior, condition

__all__ = [
    "ContradictionError",
    "CurvatureShaped",
    "Isotropic",
    "Kronecker",
    "Observations",
    "Posterior",
    "Prior",
    "Symmetric",
    "checked_prior",
    "condition",
    "load",
]
