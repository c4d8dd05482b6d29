"""How RateFree scales gradients."""

from infhess.optim.scalings.diagonal import Diagonal
from infhess.optim.scalings.gradient_scaling import Scaling
from infhess.optim.scalings.rotated import Kronecker

SCALINGS: dict[str, Scaling] = {scaling.name: scaling for scaling in (Diagonal(), Kronecker())}
