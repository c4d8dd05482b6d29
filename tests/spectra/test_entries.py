"""Diagonals: exact ones, and the mean and spread over random signs."""

from __future__ import annotations

import pytest
import torch

from infhess import diagonal
from util import F64, close, randn, spd


def test_exact_products_give_the_exact_diagonal_of_a_diagonal_matrix_and_means_of_another():
    values = randn(6)
    found = diagonal(torch.diag(values))
    close(found.values, values)
    assert float(found.std.max()) < 1e-7
    A, g = spd(5), torch.Generator().manual_seed(3)
    z = torch.stack([2 * torch.randint(2, (5,), generator=g, dtype=F64) - 1 for _ in range(8)], 1)
    found = diagonal(A, probes=8, generator=torch.Generator().manual_seed(3))
    close(found.values, (z * (A @ z)).mean(1))
    close(found.std, (z * (A @ z)).std(1) / 8**0.5)
    assert (found.products, found.probes) == (8, 8)
    with pytest.raises(ValueError, match="4 or more"):
        diagonal(A, probes=3)
