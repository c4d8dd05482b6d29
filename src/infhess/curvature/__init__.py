"""Sources of products."""

from infhess.curvature.batch_source import BatchSource, GaussNewton, Hessian
from infhess.curvature.local import DoubleBackwardError
from infhess.curvature.source import Products, Source, as_source

__all__ = ["BatchSource", "DoubleBackwardError", "GaussNewton", "Hessian", "Products", "Source", "as_source"]
