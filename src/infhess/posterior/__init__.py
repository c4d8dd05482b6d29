"""Priors over a matrix, and conditioning them on products."""

from infhess.posterior.base import ContradictionError, Posterior
from infhess.posterior.observations import Observations
from infhess.posterior.priors import CurvatureShaped, Isotropic, Kronecker, Prior, Symmetric, checked_prior, condition
from infhess.posterior.restore import load

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
