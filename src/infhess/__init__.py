"""Infer a matrix from noisy products with it, and train faster with what was learnt."""

from infhess._version import __version__
from infhess.posterior import CurvatureShaped, Isotropic, Kronecker, Posterior, Symmetric, condition, load

__all__ = ["CurvatureShaped", "Isotropic", "Kronecker", "Posterior", "Symmetric", "__version__", "condition", "load"]
