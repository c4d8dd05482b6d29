"""Shares of a spectrum seen through random starts: their distribution, and its quantiles."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.special import ndtr, ndtri

BISECTIONS = 60


def share_bound(f: Tensor, z: Tensor, count: float) -> Tensor:
    """The share F of eigenvalues for which the observed share f lies z standard deviations above its mean.

    V Gaussian starts in N dimensions put a share f ~ Beta(νF, ν(1 − F)), ν = VN/2 = `count`, of their squared length into
    a space spanned by FN eigenvectors. Its distribution function is by Paulson's (1942) transformation, and F by bisection:
    z > 0 gives lower, z < 0 upper bounds.

    >>> import torch
    >>> f = torch.tensor([0.5, 0.01], dtype=torch.float64)
    >>> share_bound(f, torch.tensor(-1.96), 1000.0).round(decimals=3).tolist()
    [0.531, 0.017]
    """
    low, high = torch.zeros_like(f), torch.ones_like(f)
    for _ in range(BISECTIONS):
        F = (low + high) / 2
        below = _deviate(f, F, count) > z
        low, high = torch.where(below, F, low), torch.where(below, high, F)
    return (low + high) / 2


def _deviate(f: Tensor, F: Tensor, count: float) -> Tensor:
    """The standard normal deviate of f under Beta(νF, ν(1 − F)): cube roots of an F ratio are nearly normal."""
    tiny = 1e-300
    a, b = 1 / (9 * count * F).clamp(min=tiny), 1 / (9 * count * (1 - F)).clamp(min=tiny)
    root = (f * (1 - F) / ((1 - f) * F).clamp(min=tiny)).pow(1 / 3)
    return ((1 - b) * root - (1 - a)) / (b * root.square() + a).sqrt()


def normal_deviate(level: float) -> float:
    """z with P(|Z| < z) = level.

    >>> round(normal_deviate(0.95), 2)
    1.96
    """
    return float(ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))


def bracket_deviate(level: float, width: Tensor, se: Tensor) -> Tensor:
    """z such that bounds z standard errors outside a bracket cover a value at its end with this probability.

    Φ(z + width/se) − Φ(−z) = level (Imbens & Manski 2004): the two-sided z for a narrow bracket, the one-sided z for one so
    wide that the value cannot be near both ends.
    """
    ratio = (width / se.clamp(min=1e-300)).clamp(max=1e3)
    low = torch.full_like(ratio, float(ndtri(torch.tensor(level, dtype=torch.float64))))
    high = torch.full_like(ratio, normal_deviate(level))
    for _ in range(BISECTIONS):
        z = (low + high) / 2
        enough = ndtr(z + ratio) - ndtr(-z) > level
        low, high = torch.where(enough, low, z), torch.where(enough, z, high)
    return high


def kolmogorov(level: float) -> float:
    """k with P(sup |Brownian bridge| < k) = level: 1 − 2 Σ (−1)^{j−1} e^{−2j²k²}.

    >>> round(kolmogorov(0.95), 3)
    1.358
    """
    low, high = 0.05, 5.0
    for _ in range(BISECTIONS):
        k = (low + high) / 2
        below = 1 - 2 * sum((-1) ** (j - 1) * math.exp(-2 * j * j * k * k) for j in range(1, 101)) < level
        low, high = (k, high) if below else (low, k)
    return high
