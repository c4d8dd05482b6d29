"""Sources of products."""

from infhess.curvature.source import Products, Source, as_source

__all__ = ["Products", "Source", "as_source"]
