"""Whether curvature is still what it was: predicted against observed, along the steps that training makes anyway."""

from __future__ import annotations

import torch
from torch import Tensor

# Curvature that has changed by this factor calls for a new estimate, once the evidence is this many standard errors.
FACTOR, CERTAIN, FORGET = 3.0, 5.0, 0.995


class Drift:
    """Compares how gradients change along the directions of U with how they should.

    Of c = UᵀRg, k numbers a step, the change from one step to the next is σ·d + noise, with d the step along U. The noise of
    c₂ − c₁ is independent of c₀, one step earlier, so that c₀·(c₂ − c₁) and c₀·σd₁ have the same mean if σ is still right.
    Sums with slow forgetting live on the device; only `due` reads them.
    """

    def __init__(self) -> None:
        self._past: list[Tensor] = []
        self._velocity: Tensor | None = None
        self._displacement: Tensor | None = None
        self._moments: Tensor | None = None  # Σ of 1, o, p, oo, op, pp

    def see(self, c: Tensor, values: Tensor, gain: Tensor, rate: float, decay: float, weight: float) -> None:
        """One step: c, the curvature and the gains along U, the rate applied and the base's momentum."""
        if len(self._past) == 2 and self._displacement is not None:
            before, last = self._past
            scaled = (1 - gain) * before
            observed = scaled @ (c - last)
            predicted = scaled @ (values * self._displacement)
            o, p = observed, predicted
            row = torch.stack([torch.ones_like(o), o, p, o * o, o * p, p * p])
            self._moments = row if self._moments is None else FORGET * self._moments + row
        move = (1 - gain) * c * weight
        self._velocity = move if self._velocity is None else decay * self._velocity + move
        self._displacement = -rate * self._velocity
        self._past = [*self._past[-1:], c]

    @property
    def due(self) -> bool:
        """Whether observed curvature is beyond three times the predicted, or below a third, with certainty."""
        if self._moments is None:
            return False
        n, o, p, oo, op, pp = self._moments.tolist()
        if n < 20 or p == 0:
            return False
        sign = 1.0 if p > 0 else -1.0

        def certain(a: float, b: float) -> bool:
            """Whether the mean of a·o + b·p is above zero by so many standard errors."""
            mean = (a * o + b * p) / n
            variance = (a * a * oo + 2 * a * b * op + b * b * pp) / n - mean * mean
            error = float(max(variance, 0.0) / n) ** 0.5
            return bool(sign * float(mean) > CERTAIN * error > 0)

        return certain(1.0, -FACTOR) or certain(-1.0, 1 / FACTOR)
