"""Problems: a loss, its parameters and its data, by name; a new one is one entry in a table."""

from infhess.problems.curvature_problems import CURVATURE, CurvatureProblem

__all__ = ["CURVATURE", "CurvatureProblem"]
