"""Sources of matrix-vector products: Hessian, Gauss–Newton and Fisher matrices of a PyTorch loss, or any operator."""

from infhess.curvature.batch_curvature import DoubleBackwardError
from infhess.curvature.batch_source import BatchSource, Hessian
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
