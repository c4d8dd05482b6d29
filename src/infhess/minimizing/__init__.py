"""Minimize convex losses on finite data in one call."""

from infhess.minimizing.minimize import minimize
from infhess.minimizing.result import Minimum

__all__ = ["Minimum", "minimize"]
