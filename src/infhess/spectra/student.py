"""Student's t, and intervals for the mean of a skewed sample."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from infhess._checks import finite_number

POINTS = 4001


def probability(level: float) -> float:
    """Check that a level is strictly between 0 and 1."""
    level = finite_number(level, "level", least=0.0, strict=True)
    if level >= 1:
        raise ValueError(f"level: expected a number between 0 and 1, such as 0.95, got {level:g}")
    return level


def two_sided(level: float, dof: Tensor) -> Tensor:
    """t with P(|T| < t) = level, for any real number of degrees of freedom.

    With T = √ν tan φ the density is cos^{ν−1} φ: a smooth integral over a finite range, computed on a grid.

    >>> import torch
    >>> two_sided(0.95, torch.tensor([1.0, 7.0, 1e6])).round(decimals=3).tolist()
    [12.706, 2.365, 1.96]
    """
    dof = dof.to(torch.float64).clamp(max=1e7)[..., None]
    end = torch.clamp(40 / dof.sqrt(), max=math.pi / 2)
    phi = end * torch.linspace(0, 1, POINTS, dtype=torch.float64, device=dof.device)
    log_density = (dof - 1) * torch.cos(phi).clamp(min=1e-300).log()
    mass = torch.cumulative_trapezoid(log_density.exp(), phi, dim=-1)
    share = mass / mass[..., -1:]
    above = torch.searchsorted(share, torch.full_like(end, level)).clamp(1, POINTS - 2)
    low, high = share.gather(-1, above - 1), share.gather(-1, above)
    part = (level - low) / (high - low)
    angle = torch.lerp(phi.gather(-1, above), phi.gather(-1, above + 1), part)
    return (dof.sqrt() * torch.tan(angle))[..., 0]


def weighted_mean(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The mean m = Σ w_c x_c along dimension 0, and its variance Σ w_c² (x_c − m)² / (1 − Σ w_c²).

    Unbiased if the variance of x_c is proportional to 1/w_c, as for means of groups with shares w_c of the points; for equal
    weights it is the usual C/(C − 1). One value has no spread: its variance is NaN.
    """
    w = w.reshape(len(w), *(1 for _ in x.shape[1:]))
    mean = (w * x).sum(0)
    free = 1 - w.square().sum(0)
    variance = (w * (x - mean)).square().sum(0) / free
    return mean, variance if len(x) > 1 else torch.full_like(variance, math.nan)


def skewed_mean(x: Tensor, level: float, share: float = 0.0, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """An interval for the mean of each column of x (J, k) that accounts for the skewness of the sample.

    The envelope of two intervals: Hall's (1992) cubic transformation of the t statistic, and one that is symmetric in the
    logarithm. `share` is the sample's share of a finite population, `weights` are those of the rows. NaN if there is one row
    and it is not the whole population.
    """
    x = x.to(torch.float64)
    w = torch.full((len(x),), 1 / len(x)).to(x) if weights is None else weights.to(x)
    mean, variance = weighted_mean(x, w)
    if len(x) == 1:
        return (mean, mean) if share >= 1 else (variance, variance)
    tiny = torch.finfo(torch.float64).tiny
    a = (w[:, None] * (x - mean) / variance.sqrt().clamp(min=tiny)).pow(3).sum(0)  # the skewness of the mean
    se = (variance * max(0.0, 1 - share)).sqrt()
    t = two_sided(level, torch.full_like(mean, max(1.0, 1 / float(w.square().sum()) - 1)))
    bounds = [(mean - hall(t, a) * se, mean - hall(-t, a) * se), log_interval(mean, t * se)]
    return torch.minimum(bounds[0][0], bounds[1][0]), torch.maximum(bounds[0][1], bounds[1][1])


def hall(x: Tensor, a: Tensor) -> Tensor:
    """(3/a) (∛(1 + a (x − a/6)) − 1), which is x for a = 0."""
    safe = torch.where(a.abs() < 1e-8, torch.ones_like(a), a)
    inner = 1 + safe * (x - safe / 6)
    root = inner.sign() * inner.abs().pow(1 / 3)
    return torch.where(a.abs() < 1e-8, x, 3 / safe * (root - 1))


def log_interval(value: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """value·e^{∓width/|value|}: a positive quantity stays positive, and the upper side is longer.

    Beyond 1.5 widths the exponentials continue as straight lines: the sign of a value of the size of its noise is uncertain.
    """
    size = value.abs().clamp(min=torch.finfo(value.dtype).tiny)
    x = width / size
    bend = torch.clamp(x, max=1.5)
    stretch = torch.where(x > 1.5, x / 1.5, torch.ones_like(x))
    toward = size * -torch.expm1(-bend) * stretch
    away = size * torch.expm1(bend) * stretch
    positive = value >= 0
    return value - torch.where(positive, toward, away), value + torch.where(positive, away, toward)
