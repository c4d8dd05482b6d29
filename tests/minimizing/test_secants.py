"""Two loops of L-BFGS against the dense update formula."""

from __future__ import annotations

import torch

from infhess.minimizing.secants import two_loops, usable


def dense(H, pairs):
    """H ← (I − ρ s yᵀ) H (I − ρ y sᵀ) + ρ s sᵀ, Eq. (7.16) of Nocedal & Wright."""
    eye = torch.eye(len(H), dtype=H.dtype)
    for s, y in pairs:
        rho = 1 / (s @ y)
        V = eye - rho * torch.outer(y, s)
        H = V.mT @ H @ V + rho * torch.outer(s, s)
    return H


def test_two_loops_are_the_dense_update(g):
    A = torch.randn(6, 6, generator=g, dtype=torch.float64)
    A = A @ A.mT + torch.eye(6, dtype=A.dtype)
    H = torch.diag(torch.rand(6, generator=g, dtype=A.dtype) + 0.5)
    steps = torch.randn(3, 6, generator=g, dtype=A.dtype)
    pairs, q = [(s, A @ s) for s in steps], torch.randn(6, generator=g, dtype=A.dtype)
    torch.testing.assert_close(two_loops(pairs, q, lambda v: H @ v), dense(H, pairs) @ q)
    # the newest secant holds: H y = s
    torch.testing.assert_close(two_loops(pairs, A @ steps[-1], lambda v: H @ v), steps[-1])


def test_without_secants_it_is_the_inverse():
    q = torch.ones(3)
    assert torch.equal(two_loops([], q, lambda v: 2 * v), 2 * q)


def test_secants_that_do_not_curve_upwards_are_left_out():
    s = torch.ones(2)
    assert usable([(s, -s), (s, s), (s, 0 * s)]) == [(s, s)]
