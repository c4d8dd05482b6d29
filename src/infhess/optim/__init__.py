"""Optimizers that learn curvature as they go."""

from infhess.optim.preconditioned import Preconditioned
from infhess.optim.report import Report

__all__ = ["Preconditioned", "Report"]
