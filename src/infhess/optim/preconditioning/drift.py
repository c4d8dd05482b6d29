"""Whether curvature is still as estimated: prediction against observation, along the steps that training makes anyway."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from infhess.optim.base_optimizers import Group, Momentum, momentum_of

# Curvature that has changed by this factor calls for a new estimate, if the evidence exceeds this many standard errors.
FACTOR, CERTAIN = 2.0, 3.0
# Steps that are remembered, and how many are needed for a verdict.
WINDOW, FEWEST = 1024, 80
# The distance in steps at which two gradients are taken to be independent.
LAG = 8
# With more momentum than this, successive displacements say more than successive gradients.
HEAVY = 0.25
# Share of the last steps that the bound on steps may shorten: predicted curvature would let gradients fall.
BOUNDED = 0.25


class Drift:
    """Compares how gradients respond to the steps with the predicted response, along the directions of U.

    c = UᵀRg is k numbers per step. The noise of one gradient moves w, and so reappears in the next. Without momentum,
    successive gradients have the correlation −ησ/2 at stationarity, with σ the curvature along a direction and η the rate
    there; differences to gradients LAG and 2·LAG steps earlier remove a slowly moving mean. With momentum, the displacement
    d₀ of one step predicts the next, d₁, but not the noise in c₂ − c₁ = σd₁ + noise, so d₀·(c₂ − c₁) has the mean of d₀·σd₁.
    A step only records c, on the device; `due` does the sums.

    Curvature far above the prediction makes gradients grow until the bound on steps holds them. They change sign from step to
    step then, which differences over an even number of steps do not see; that many steps are shortened tells it.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[Tensor, Any, float]] = deque(maxlen=WINDOW)  # c, learning rate, and share, of each step
        self._momentum = Momentum(0.0, 1.0)

    def see(self, c: Tensor, group: Group, share: float = 1.0) -> None:
        """Record c, learning rate and momentum of one step, and by which share a bound on steps has shortened it."""
        self._seen.append((c, group.get("lr", math.nan), share))
        self._momentum = momentum_of(group)

    def bounded(self) -> bool:
        """Whether many of the last steps were shortened."""
        last = [share for _, _, share in self._seen][-FEWEST:]
        return sum(share < 1 for share in last) > BOUNDED * FEWEST

    def due(self, values: Tensor, gain: Tensor) -> bool:
        """Whether curvature along the steps is significantly above twice or below half of what `values` predict."""
        if len(self._seen) < FEWEST:
            return False
        c = torch.stack([c for c, _, _ in self._seen]).to(torch.float64)
        rates, shares = (torch.tensor([float(s[i]) for s in self._seen]).to(c) for i in (1, 2))
        weights = (1 - gain).to(c)
        compare = _displacements if self._momentum.decay > HEAVY else _correlations
        z, seen, expected = compare(c, rates, shares, values.to(c), weights, *self._momentum)
        return _certainly_off(z, seen, expected, weights)


def _correlations(
    c: Tensor, rates: Tensor, shares: Tensor, values: Tensor, weights: Tensor, *_: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, the next gradients, and the predicted effect of the noise of the former on the latter; moving mean removed."""
    kick, answer = c[2 * LAG : -1] - c[LAG : -LAG - 1], c[2 * LAG + 1 :] - c[: -2 * LAG - 1]
    return kick, answer, -0.25 * (rates * shares)[2 * LAG : -1, None] * weights * values * kick


def _displacements(
    c: Tensor, rates: Tensor, shares: Tensor, values: Tensor, weights: Tensor, decay: float, weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Displacements, the change of the gradient over the next displacement, and the prediction of that change."""
    # v ← decay·v + weight·g, as a convolution with powers of the decay.
    reach = min(len(c), math.ceil(math.log(1e-6) / math.log(decay)))
    left = decay ** torch.arange(reach - 1, -1, -1, dtype=c.dtype, device=c.device)
    pushes = torch.nn.functional.pad((weight * weights * c * shares[:, None]).mT[:, None], (reach - 1, 0))
    v = torch.nn.functional.conv1d(pushes, left[None, None])[:, 0].mT
    d = -rates[:, None] * v
    return d[:-2], c[2:] - c[1:-1], values * d[1:-1]


def _certainly_off(z: Tensor, seen: Tensor, expected: Tensor, weights: Tensor) -> bool:
    """Whether the mean of z·seen is significantly above FACTOR times that of z·expected, or below 1/FACTOR of it.

    Each step is normalised by its own size, so that none outweighs all others.
    """
    size = ((weights * z * z).sum(1) * (weights * seen * seen).sum(1)).sqrt().clamp(min=1e-300)
    o, p = (weights * z * seen).sum(1) / size, (weights * z * expected).sum(1) / size
    sign = 1.0 if float(p.mean()) > 0 else -1.0

    def certain(x: Tensor) -> bool:
        return bool(sign * x.mean() > CERTAIN * x.std() / len(x) ** 0.5)

    return certain(o - FACTOR * p) or certain(p / FACTOR - o)
