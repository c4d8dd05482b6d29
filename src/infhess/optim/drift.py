"""Whether curvature is still what it was: predicted against observed, along the steps that training makes anyway."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

# Curvature that has changed by this factor calls for a new estimate, once the evidence is this many standard errors.
FACTOR, CERTAIN = 2.0, 3.0
# The distance in steps at which two gradients are taken to be free of each other; forgetting a step; steps before a verdict.
LAG, FORGET, FEWEST = 8, 0.999, 60
# Momentum beyond which successive displacements tell more than successive gradients.
HEAVY = 0.25


class Drift:
    """Compares how gradients answer to the steps made with how they should, along the directions of U.

    Of c = UᵀRg, k numbers a step, the noise of one gradient moves w, and so comes back in the next. Without momentum successive
    gradients have the correlation −ησ/2 once things are stationary, with σ the curvature along a direction and η the rate
    there; differences to gradients LAG and 2·LAG steps earlier take a slowly moving mean out. With momentum the displacement
    d₀ of one step tells much of the next, d₁, and nothing of the noise in c₂ − c₁ = σd₁ + noise: d₀·(c₂ − c₁) has the mean
    of d₀·σd₁. Sums live on the device; only `due` reads them.
    """

    def __init__(self) -> None:
        self._past: deque[Tensor] = deque(maxlen=2 * LAG + 2)
        self._velocity: Tensor | None = None
        self._moved: deque[Tensor] = deque(maxlen=2)
        self._moments: Tensor | None = None  # Σ of 1, o, p, oo, op, pp

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def see(self, c: Tensor, values: Tensor, gain: Tensor, rate: float, decay: float, weight: float) -> None:
        """One step: c, the curvature and the gains along U, the rate applied and the base's momentum."""
        self._past.append(c)
        if decay > HEAVY:
            self._displacements(c, values, 1 - gain)
            move = weight * (1 - gain) * c
            self._velocity = move if self._velocity is None else decay * self._velocity + move
            self._moved.append(-rate * self._velocity)
        elif len(self._past) == 2 * LAG + 2:
            kick, answer = self._past[-2] - self._past[LAG], self._past[-1] - self._past[0]
            self._add(kick, answer, -0.25 * rate * (1 - gain) * values * kick, 1 - gain)

    def _displacements(self, c: Tensor, values: Tensor, weights: Tensor) -> None:
        if len(self._moved) == 2:
            before, last = self._moved
            self._add(before, c - self._past[-2], values * last, weights)

    def _add(self, z: Tensor, seen: Tensor, expected: Tensor, weights: Tensor) -> None:
        """z·seen and z·expected in the metric of P², relative to the sizes at hand: no step is to outweigh all others."""
        size = ((weights * z) @ z * ((weights * seen) @ seen)).sqrt().clamp(min=1e-300)
        o, p = (weights * z) @ seen / size, (weights * z) @ expected / size
        row = torch.stack([torch.ones_like(o), o, p, o * o, o * p, p * p])
        self._moments = row if self._moments is None else FORGET * self._moments + row

    @property
    def due(self) -> bool:
        """Whether observed curvature is beyond twice the predicted, or below half of it, with certainty."""
        if self._moments is None:
            return False
        n, o, p, oo, op, pp = self._moments.tolist()
        sign = 1.0 if p > 0 else -1.0

        def certain(a: float, b: float) -> bool:
            """Whether the mean of a·o + b·p has the sign of p by so many standard errors."""
            mean = (a * o + b * p) / n
            variance = (a * a * oo + 2 * a * b * op + b * b * pp) / n - mean * mean
            return bool(sign * mean > CERTAIN * (max(variance, 0.0) / n) ** 0.5 > 0)

        return n > FEWEST and (certain(1.0, -FACTOR) or certain(-1.0, 1 / FACTOR))
