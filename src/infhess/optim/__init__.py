"""Optimizers that learn curvature as they go."""

from infhess.optim.controllers.step_length import NothingSeenError
from infhess.optim.preconditioned import Preconditioned
from infhess.optim.rate_free import RateFree
from infhess.optim.reports import Rate, RateReport, Report

__all__ = ["NothingSeenError", "Preconditioned", "Rate", "RateFree", "RateReport", "Report"]
