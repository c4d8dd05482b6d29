"""Bounds on a distribution function: Weyl's hold with no chance involved, and intervals widen as they should."""

from __future__ import annotations

import pytest
import torch

from infhess.spectra.law import Law, sampled
from infhess.spectra.quadrature import Quadrature
from util import F64, randn, spectrum


def rule(A):
    """All eigenvalues, with equal weights."""
    values = torch.linalg.eigvalsh(A)
    n = len(values)
    return Quadrature(values[:, None, None], torch.zeros(n, dtype=F64), torch.full((n,), 1 / n, dtype=F64), 1e-16)


@pytest.mark.parametrize("size", [0.01, 0.3, 3.0])
def test_an_error_of_any_size_is_allowed_for(size):
    H, E = spectrum(torch.linspace(-1, 2, 40) ** 3), randn(40, 40, seed=2)
    E = size * (E + E.mT) / 40**0.5
    E[:3] *= 5
    E = (E + E.mT) / 2
    bounds = sampled(rule(H + E), rule(E))
    values, x = torch.linalg.eigvalsh(H), torch.linspace(-3, 10, 101, dtype=F64)
    exact = (values[None] <= x[:, None]).double().mean(1)
    low, high = bounds.bounds(x)
    assert bool(((low <= exact + 1e-9) & (exact <= high + 1e-9)).all())
    assert float((high - low).mean()) < 1.0


def law(starts, data=None, A=None):
    return Law(rule(torch.eye(50, dtype=F64) if A is None else A), 50, starts, data)


def test_without_starts_there_is_no_noise_and_with_more_of_them_there_is_less():
    half, none = torch.tensor([0.5], dtype=F64), torch.zeros(1, dtype=F64)
    widths = [float(high - low) for low, high in (law(v).interval(half, half, none, 0.95) for v in (1, 4, 16, 0))]
    assert widths[0] == pytest.approx(2 * 1.96 * (0.5 / 51) ** 0.5, rel=0.1)
    assert widths[0] > 1.8 * widths[1] > 3.2 * widths[2]
    assert widths[3] < 1e-6
    joint = [float(high - low) for low, high in (law(v).band(half, half, none, 0.95) for v in (1, 4))]
    assert joint[0] == pytest.approx(2 * joint[1])
    assert joint[0] > widths[0]


@pytest.mark.parametrize("rounding", [0.0, 2e-15])
def test_certain_ends_stay_certain(rounding):
    ends = torch.full((1,), rounding, dtype=F64), torch.full((1,), 1 - rounding, dtype=F64)
    low, high = law(4).interval(*ends, torch.full((1,), 0.01, dtype=F64), 0.95)
    assert (float(low), float(high)) == (0.0, 1.0)
