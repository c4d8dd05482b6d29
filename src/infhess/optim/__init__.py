"""Optimizers that learn curvature as they go."""

from infhess.optim.preconditioned import Preconditioned
from infhess.optim.report import Report
from infhess.optim.snapshot import Snapshot

__all__ = ["Preconditioned", "Report", "Snapshot"]
