"""How RateFree scales gradients."""

from infhess.optim.scalings.diagonal import DiagonalScaling
from infhess.optim.scalings.gradient_scaling import GradientScaling
from infhess.optim.scalings.rotated import RotatedScaling

SCALINGS: dict[str, GradientScaling] = {scaling.name: scaling for scaling in (DiagonalScaling(), RotatedScaling())}
