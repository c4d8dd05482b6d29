"""Conjugate gradients against dense solutions."""

from __future__ import annotations

import pytest
import torch

from infhess.minimizing.conjugate import conjugate_gradients


def spd(n, condition, g):
    Q = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q
    return Q * torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), n, dtype=torch.float64) @ Q.mT


def identity(v):
    return v


@pytest.mark.parametrize("condition", [10.0, 1e4])
def test_what_is_left_is_estimated_in_the_norm_of_the_matrix(condition, g):
    A, b = spd(40, condition, g), torch.randn(40, generator=g, dtype=torch.float64)
    exact = torch.linalg.solve(A, b)
    found = conjugate_gradients(lambda v: A @ v, b, identity, 1e-3, 200)
    error = exact - found.x
    true = float(error @ A @ error / (b @ exact))
    assert found.left <= 1e-3
    assert true < 10 * found.left


def test_an_exact_preconditioner_takes_two_iterations(g):
    A, b = spd(40, 1e8, g), torch.randn(40, generator=g, dtype=torch.float64)
    inverse = torch.linalg.inv(A)
    found = conjugate_gradients(lambda v: A @ v, b, lambda v: inverse @ v, 1e-2, 50)
    assert found.iterations <= 2
    torch.testing.assert_close(found.x, torch.linalg.solve(A, b), rtol=1e-5, atol=1e-5)


def test_negative_curvature_is_seen(g):
    A = torch.diag(torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64))
    found = conjugate_gradients(lambda v: A @ v, torch.ones(3, dtype=torch.float64), identity, 1e-9, 50)
    assert found.negative


def test_a_flat_direction_is_no_negative_one():
    A = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64))
    b = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    found = conjugate_gradients(lambda v: A @ v, b, identity, 1e-12, 50)
    torch.testing.assert_close(found.x, torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))
    nothing = conjugate_gradients(lambda v: 0 * v, b, identity, 1e-12, 50)
    assert (nothing.negative, nothing.left) == (False, 1.0)
    assert torch.equal(nothing.x, b)
