"""Sources of products."""

from infhess.curvature.batch_source import BatchSource, Hessian
from infhess.curvature.local import DoubleBackwardError
from infhess.curvature.model_sources import Fisher, GaussNewton
from infhess.curvature.selection import select
from infhess.curvature.source import Products, Source, as_source

__all__ = [
    "BatchSource",
    "DoubleBackwardError",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "Products",
    "Source",
    "as_source",
    "select",
]
