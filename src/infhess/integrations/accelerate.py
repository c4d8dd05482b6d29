"""Accelerate: the optimizer itself out of what `prepare` gives."""

from infhess.integrations.training_run import unwrap as unwrap

__all__ = ["unwrap"]
