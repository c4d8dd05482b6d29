"""The list of public names; `infhess` imports them when one is first used."""

from infhess._version import __version__
from infhess.active import State, infer, infer_steps
from infhess.curvature import BatchSource, DoubleBackwardError, Fisher, GaussNewton, Hessian, Products, Source, select
from infhess.lowrank import LowRank, Operator, SingularError
from infhess.minimizing import Minimum, minimize
from infhess.optim import NothingSeenError, Preconditioned, Rate, RateFree, RateReport, Report
from infhess.posterior import (
    ContradictionError,
    CurvatureShaped,
    Isotropic,
    Kronecker,
    Posterior,
    Prior,
    Symmetric,
    condition,
    load,
)
from infhess.preconditioners import NoCurvatureError, paper_preconditioner, preconditioner
from infhess.spectra import (
    Along,
    Density,
    Diagonal,
    Estimate,
    Moment,
    Share,
    Spectrum,
    Tracker,
    density,
    diagonal,
    largest,
    spectrum,
    spectrum_rounds,
    trace,
)

__all__ = [
    # priors and posteriors
    "CurvatureShaped",
    "Isotropic",
    "Kronecker",
    "Posterior",
    "Prior",
    "Symmetric",
    "condition",
    "load",
    # sources
    "BatchSource",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "Products",
    "Source",
    "select",
    # active inference
    "State",
    "infer",
    "infer_steps",
    # curvature with error bars
    "Along",
    "Density",
    "Diagonal",
    "Estimate",
    "Moment",
    "Share",
    "Spectrum",
    "Tracker",
    "density",
    "diagonal",
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
    # convex problems in one call
    "Minimum",
    "minimize",
    # errors: each is a ValueError
    "ContradictionError",
    "DoubleBackwardError",
    "NoCurvatureError",
    "NothingSeenError",
    "SingularError",
    "__version__",
]
