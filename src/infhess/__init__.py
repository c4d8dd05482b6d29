"""Infer a matrix from noisy products with it, and train faster with what was learnt."""

from infhess._version import __version__
from infhess.active import infer, infer_steps
from infhess.curvature import DoubleBackwardError, GaussNewton, Hessian, Products
from infhess.lowrank import LowRank, Operator
from infhess.optim import Preconditioned, Rate, RateFree, RateReport, Report, Snapshot
from infhess.posterior import CurvatureShaped, Isotropic, Kronecker, Posterior, Symmetric, condition, load
from infhess.scaling import paper_preconditioner, preconditioner
from infhess.spectrum import Spectrum, largest, spectrum, spectrum_rounds, trace

__all__ = [
    # priors and posteriors
    "CurvatureShaped",
    "Isotropic",
    "Kronecker",
    "Posterior",
    "Symmetric",
    "condition",
    "load",
    # sources
    "DoubleBackwardError",
    "GaussNewton",
    "Hessian",
    "Products",
    # active inference
    "infer",
    "infer_steps",
    # curvature with error bars
    "Spectrum",
    "largest",
    "spectrum",
    "spectrum_rounds",
    "trace",
    # operators and preconditioners
    "LowRank",
    "Operator",
    "paper_preconditioner",
    "preconditioner",
    # optimizers
    "Preconditioned",
    "Rate",
    "RateFree",
    "RateReport",
    "Report",
    "Snapshot",
    "__version__",
]
