"""Square roots of a positive definite operator by quadrature over shifted systems."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from infhess.lowrank.operator import Operator, SingularError


class DiagonalRoot(Operator):
    """A^{±½} v of a diagonal plus low rank A with its spectrum in [low, high], from shifted solves.

    A^{−½} = (1/π) ∫ e^{x/2} (A + eˣ)⁻¹ dx. The integrand is analytic in the strip |Im x| < π, so the trapezoidal rule of step
    h has a relative error of e^{−2π²/h}; the tails are cut where they add less than rounding.
    """

    def __init__(
        self, solve: Callable[[Tensor, float], Tensor], A: Operator, exponent: float, low: float, high: float
    ) -> None:
        if exponent not in (0.5, -0.5):
            raise ValueError(f"power of a diagonal plus low rank: expected ±0.5 or ±1, got {exponent}")
        self.solve_shifted, self.A, self.exponent, self.low, self.high = solve, A, exponent, low, high
        self.shape, self.like = A.shape, A.like
        digits = -math.log(torch.finfo(A.dtype).eps / 10)
        self.h = 2 * math.pi**2 / digits
        start, stop = math.log(low) - 2 * digits, math.log(high) + 2 * digits
        self.nodes = [start + self.h * i for i in range(math.ceil((stop - start) / self.h) + 1)]

    def _product(self, v: Tensor) -> Tensor:
        out = torch.zeros_like(v)
        for x in self.nodes:
            out += (self.h / math.pi * math.exp(x / 2)) * self.solve_shifted(v, math.exp(x))
        return out if self.exponent < 0 else self.A._product(out)

    @property
    def T(self) -> DiagonalRoot:
        """The transpose: the root is symmetric."""
        return self

    def _solve(self, v: Tensor, damping: float) -> Tensor:
        if damping:
            raise SingularError("a root of a diagonal plus low rank solves without damping only; pass damping=0")
        return DiagonalRoot(self.solve_shifted, self.A, -self.exponent, self.low, self.high)._product(v)
