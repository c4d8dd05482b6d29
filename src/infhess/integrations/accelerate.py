"""Accelerate: the optimizer itself out of what `prepare` gives."""

from infhess.integrations.events import unwrap as unwrap

__all__ = ["unwrap"]
