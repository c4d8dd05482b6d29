"""P²: low-rank scaling of gradients, its formulas, and building it from mini-batches."""

from infhess.preconditioners.scaling import NoCurvatureError, paper_preconditioner, preconditioner

__all__ = ["NoCurvatureError", "paper_preconditioner", "preconditioner"]
