"""Factors of a covariance and pencils of two of them: the identities that define them, also where one is singular or large."""

from __future__ import annotations

import pytest
import torch

from infhess import Kronecker, condition
from infhess.posterior.base import ContradictionError
from infhess.posterior.factors import as_matrix, root, times
from infhess.posterior.pencil import pencil, right_modes
from util import F64, close, randn, spd, spectrum

FACTORS = {
    "number": torch.tensor(0.3, dtype=F64),
    "diagonal": torch.tensor([4.0, 0.25, 0.0], dtype=F64),
    "matrix": spd(3),
}


@pytest.mark.parametrize("name", FACTORS)
def test_products_and_roots_are_those_of_the_matrix(name):
    F, X = FACTORS[name], randn(3, 2)
    A = as_matrix(F, 3)
    assert A.shape == (3, 3)
    close(times(F, X), A @ X, 1e-12)
    close(as_matrix(root(F), 3) @ as_matrix(root(F), 3), A, 1e-12)


def test_a_root_takes_what_rounding_made_negative_for_zero():
    A = spectrum([4.0, 1.0, -1e-17])
    close(root(A) @ root(A), A, 1e-12)
    assert root(torch.tensor(-1e-17, dtype=F64)) == 0


@pytest.mark.parametrize("rank", [3, 2])
def test_a_pencil_makes_both_diagonal(rank):
    A, L = spd(3), spectrum([2.0, 0.5, 0.1][:rank] + [0.0] * (3 - rank), seed=4)
    found = pencil(A, L, 3)
    U = found @ torch.eye(3, dtype=F64)
    close(U.mT @ A @ U, torch.diag(found.a), 1e-9)
    close(U.mT @ L @ U, torch.diag(found.l), 1e-9)
    metric = L if rank == 3 else A + L
    close(U.mT @ metric @ U, torch.eye(3, dtype=F64), 1e-9)
    close(found.logdet, torch.logdet(metric), 1e-9)
    close(found.t(A), U.mT @ A, 1e-12)


def test_a_pencil_of_diagonals_is_themselves():
    found = pencil(torch.tensor(2.0, dtype=F64), torch.tensor([1.0, 3.0], dtype=F64), 2)
    assert (found.a.tolist(), found.l.tolist(), float(found.logdet), found.scale) == ([2.0, 2.0], [1.0, 3.0], 0.0, 1.0)


def test_a_matrix_that_is_known_up_to_one_row_space_is_so_however_large_it_is():
    # left = 1e12 vvᵀ: rounding of its zero eigenvalues is as large as 1e-4, and yet no row outside of v may move.
    v = torch.nn.functional.normalize(randn(5), dim=0)
    prior = Kronecker(0.0, 1e12 * torch.outer(v, v), 1.0, spd(5, 3), 0.0)
    S = torch.eye(4, 2, dtype=F64)
    found = condition(prior, S, torch.outer(v, randn(2, seed=1)))
    close(found.mean @ S, torch.outer(v, randn(2, seed=1)), 1e-6)
    with pytest.raises(ContradictionError, match="taken to be known"):
        _ = condition(prior, S, randn(5, 2, seed=2)).mean


@pytest.mark.parametrize(
    ("left", "noise"),
    [
        (torch.tensor([1.0, 0.0, 0.0], dtype=F64), 0.0),
        (spectrum([1.0, 0.5, 0.0]), 0.0),
        (torch.outer(torch.ones(3, dtype=F64), torch.ones(3, dtype=F64)), 1e6 * torch.eye(3, dtype=F64)),
    ],
)
def test_products_that_are_as_the_prior_says_to_rounding_do_not_contradict_it(left, noise):
    S, B0 = randn(3, 2), randn(3, 3, seed=1)
    prior = Kronecker(B0, left, 1.0, noise, 0.0)
    for seed in range(5):
        Y = (B0 + 1e-14 * randn(3, 3, seed=seed)) @ S
        close(condition(prior, S, Y).mean.dense(), B0, 1e-9)


def test_zeros_do_not_contradict_zeros():
    prior = Kronecker(0.0, torch.tensor([1.0, 0.0], dtype=F64), 1.0)
    S = torch.eye(2, 1, dtype=F64)
    assert not condition(prior, S, 0 * S).mean.dense().any()


def test_rounding_of_a_large_factor_gives_it_no_rank():
    for seed in range(5):
        v = torch.nn.functional.normalize(randn(6, seed=seed), dim=0)
        assert int((pencil(1e12 * torch.outer(v, v), spd(6, 3), 6).a > 0).sum()) == 1


def test_the_determinant_of_a_pencil_is_that_of_what_is_reached():
    A, L = torch.zeros(3, 3, dtype=F64), torch.zeros(3, 3, dtype=F64)
    A[:2, :2], L[0, 0] = spd(2), 0.5
    found = pencil(A, L, 3)
    close(found.logdet, torch.logdet((A + L)[:2, :2]), 1e-12)
    close(found.null.abs(), torch.tensor([[0.0], [0.0], [1.0]], dtype=F64), 1e-12)


@pytest.mark.parametrize("noise", [[0.0, 0.0], [0.3, 0.7], [0.0, 0.7]])
def test_modes_of_directions_make_both_diagonal(noise):
    S, V, D = randn(4, 2), spd(4, 5), torch.tensor(noise, dtype=F64)
    found, G = right_modes(S, V, D, 1e-12), S.mT @ V @ S
    close(found.Q.mT @ G @ found.Q, torch.diag(found.g), 1e-9)
    close(found.Q.mT @ torch.diag(D) @ found.Q, torch.diag(found.h), atol=1e-9)
    close(found.VSQ, V @ S @ found.Q, 1e-9)
    close(found.logdet, -2 * torch.linalg.slogdet(found.Q).logabsdet, 1e-9)  # Q turns the metric into the identity
