"""Curvature in any unit: squares of single-precision products under- and overflow, and must not be taken in it."""

from __future__ import annotations

import pytest
import torch

from infhess import density, largest, spectrum
from util import F64, close
from util import spectrum as with_values

VALUES = torch.linspace(-8.0, 9.0, 12, dtype=F64)


@pytest.mark.parametrize("unit", [1e-30, 1e30])
def test_eigenvalues_in_any_unit(unit):
    A = (with_values(VALUES) * unit).float()
    close(spectrum(A, k=3).values.double() / unit, VALUES.flip(0)[:3], 1e-5)
    assert largest(A).value / unit == pytest.approx(9.0, rel=1e-3)


@pytest.mark.parametrize(("unit", "dtype"), [(1e-30, torch.float32), (1e30, torch.float32), (1e150, F64)])
@pytest.mark.parametrize("copies", [1, 100])  # all eigenvalues, and Lanczos quadrature
def test_shares_in_any_unit(unit, dtype, copies):
    found = density(torch.diag(VALUES.repeat(copies) * unit).to(dtype))
    assert found.negative.value == pytest.approx(0.5, abs=0.05)
    close(found.cdf(torch.tensor([0.0, 6.0], dtype=F64) * unit), torch.tensor([0.5, 10 / 12], dtype=F64), 0.1)


@pytest.mark.parametrize("unit", [1e-20, 1e-8, 1e20])
def test_a_density_is_as_narrow_as_its_unit(unit):
    grid = density(torch.eye(4, dtype=F64) * unit).grid / unit
    assert grid[0] > 0.9
    assert grid[-1] < 1.1


@pytest.mark.parametrize("what", [largest, lambda A: spectrum(A, k=1)])
def test_units_whose_squares_overflow_are_named(what):
    with pytest.raises(ValueError, match="change the unit of B"):
        what(torch.eye(3, dtype=F64) * 1e200)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_products_that_are_not_finite_are_named(value):
    with pytest.raises(ValueError, match="a product holds NaN or infinity"):
        density(torch.full((4, 4), value))
