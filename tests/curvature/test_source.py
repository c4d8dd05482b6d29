"""Sources that are matrices, operators or callables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from infhess import Products, Source, infer, spectrum
from util import close, spd


def test_a_curvlinops_style_operator_is_a_source():
    """Anything with a shape and @ on NumPy vectors, as SciPy's and curvlinops' operators are."""

    class Operator:
        shape, dtype = (5, 5), np.dtype("float64")

        def __matmul__(self, v):
            return np.diag(np.arange(1.0, 6.0)) @ v

    close(infer(Products(Operator()), 5).eigh(1).values, torch.tensor([5.0]), 1e-2)


def test_numpy_callables_without_a_gradient():
    A = np.diag([3.0, 2.0, 1.0])
    assert infer(Products(lambda s: A @ np.asarray(s, dtype=np.float64), size=3), 3).shape == (3, 3)
    close(Products(A).matvec(np.ones(3)), torch.tensor([3.0, 2.0, 1.0]), 1e-12)
    with pytest.raises(ValueError, match=r"s: expected shape \(3,\)"):
        Products(A).matvec(torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sources(dtype):
    g = torch.Generator().manual_seed(0)
    source = Products(lambda s: (2 * s).to(dtype), lambda: torch.randn(8, generator=g).to(dtype), 8)
    close(infer(source, 3).eigh(2).values, torch.tensor([2.0, 2.0]), 0.05)
    assert infer(torch.eye(5).to(dtype), 2).mean.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_a_half_precision_matrix_are_not_rounded(dtype):
    A, v = spd(7).to(dtype), torch.randn(7, generator=torch.Generator().manual_seed(0))
    close(Products(A).matvec(v), A.float() @ v, 1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Products(3, None, 3), TypeError, "matvec: expected a callable"),
        (lambda: Products(spd(3), torch.ones(3)), TypeError, "gradient: expected a callable"),
        (lambda: Products(lambda s: s), TypeError, "size: expected the number of rows"),
        (lambda: Products(lambda s: s, None, 0), ValueError, "size: expected 1 or more"),
    ],
)
def test_bad_input(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("kind", [torch.as_tensor, lambda A: A.numpy(), lambda A: Products(lambda v: A @ v, size=12)])
def test_a_matrix_whose_entries_are_there_is_multiplied_once_a_direction(kind):
    A = torch.diag(torch.arange(1.0, 13.0, dtype=torch.float64))
    found = spectrum(kind(A), 1, directions=6)
    assert found.products == (6 * 8 if isinstance(kind(A), Source) else 6)
    assert float(found.std) < 1e-12
