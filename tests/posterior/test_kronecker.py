"""Kronecker: every kind of factor against the dense definition, and singular noise as a limit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import dense
from infhess import Isotropic, Kronecker, condition
from posterior_cases import B0, L0, W0, N, agrees, data
from util import F64, close, randn, spd

FACTORS = {"number": lambda n, s: 0.5 + s / 7, "diagonal": lambda n, s: randn(n, seed=s).abs() + 0.1, "dense": spd}
KINDS = list(itertools.product(FACTORS, repeat=4))


@pytest.mark.parametrize("kinds", KINDS, ids=["-".join(k) for k in KINDS])
@pytest.mark.parametrize("rows", [N, 4])
def test_kronecker_against_the_definition(kinds, rows):
    _, S, Y = data(rows=rows)
    sizes = (rows, N, rows, N)
    factors = [FACTORS[kind](n, seed) for seed, (kind, n) in enumerate(zip(kinds, sizes))]
    for mean in [B0, randn(rows, N, seed=9)] + ([randn(N, seed=8)] if rows == N else []):
        prior = Kronecker(mean, factors[0], factors[1], factors[2], factors[3])
        arrays = [np.asarray(f) for f in factors]
        agrees(condition(prior, S, Y), dense.kronecker(np.asarray(mean), *arrays, S.numpy(), Y.numpy()), 1e-7)


def test_more_observations_than_rows_with_noise():
    _, S, Y = data(cols=11)
    W, L = spd(N, 3), spd(N, 4)
    agrees(condition(Kronecker(B0, W, None, L), S, Y), dense.kronecker(B0, W, W, L, L, S.numpy(), Y.numpy()), 1e-7)


def test_kronecker_with_scaled_identities_is_isotropic():
    _, S, Y = data()
    a, b = condition(Kronecker(B0, W0, noise_left=L0), S, Y), condition(Isotropic(B0, W0, L0), S, Y)
    close(a.mean.dense(), b.mean.dense(), 1e-12)
    close(a.log_evidence(), b.log_evidence(), 1e-12)
    close(a.variance(S, S), b.variance(S, S), 1e-12)


def test_singular_noise_is_the_limit_of_small_noise():
    """Λ of rank 2: exact in four rows, noisy in two."""
    _, S, Y = data()
    V = randn(N, 2, seed=5)
    L = V @ V.mT
    limit = condition(Kronecker(B0, spd(N, 3), 1.0, L, 1.0), S, Y)
    near = condition(Kronecker(B0, spd(N, 3), 1.0, L + 1e-9 * torch.eye(N, dtype=F64), 1.0), S, Y)
    close(limit.mean.dense(), near.mean.dense(), 1e-6)


def test_singular_noise_and_directions_that_depend_on_each_other():
    W, L = torch.tensor([[1.0, 0.3], [0.3, 0.8]], dtype=F64), torch.tensor([0.0, 0.5], dtype=F64)
    for seed in range(20):
        S, B = randn(1, 3, seed=seed), randn(2, 1, seed=seed + 50)
        exact = condition(Kronecker(left=W, right=1.0, noise_left=L, noise_right=1.0), S, B @ S).mean.dense()
        tiny = dense.kronecker(
            0.0, W.numpy(), 1.0, (torch.diag(L) + 1e-10 * torch.eye(2)).numpy(), 1.0, S.numpy(), (B @ S).numpy()
        )
        close(exact, tiny.mean, 1e-4)


def test_repeated_directions_in_tiny_units_do_not_contradict():
    B, s = torch.diag(torch.linspace(1, 2, 50, dtype=F64)), randn(50)
    S = torch.stack([s, 2 * s, 3 * s], 1)
    close(condition(Kronecker(left=1e-9), S, 1e-9 * (B @ S)).mean @ s, 1e-9 * (B @ s), 1e-9)
