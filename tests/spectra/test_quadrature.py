"""Gauss quadrature by Lanczos: moments, and bounds that no measure leaves."""

from __future__ import annotations

import pytest
import torch

from infhess.spectra.quadrature import Lanczos, quadratures
from util import F64, close, randn, spectrum


def run(A, starts, most):
    return quadratures(lambda S: [A @ S], [starts], [most])[0]


def test_a_rule_of_m_nodes_has_the_moments_up_to_2m_minus_1():
    A, starts = spectrum(torch.linspace(-1, 1, 30)), randn(30, 2)
    theta, weights, _ = run(A, starts, 5).nodes()
    total = starts.square().sum()
    for k in range(10):
        moment = (starts * (torch.linalg.matrix_power(A, k) @ starts)).sum() / total
        close((weights * theta**k).sum(), moment, atol=1e-12)


@pytest.mark.parametrize("most", [3, 8, 20, 40])
def test_bounds_hold_for_each_start_with_no_chance_involved(most):
    values, U = torch.linalg.eigh(spectrum(torch.cat([torch.linspace(-1, 1, 30, dtype=F64) ** 3, torch.ones(10)])))
    starts = randn(40, 3)
    found, mass = run((U * values) @ U.mT, starts, most), (U.mT @ starts).square().sum(1)
    x = torch.cat([torch.linspace(-1.2, 1.2, 57, dtype=F64), values[:5]])
    exact = torch.stack([mass[values <= t + 1e-12].sum() for t in x]) / mass.sum()
    for low, high in (found.bounds(x), found.quick_bounds(x)):
        assert bool(((low <= exact + 1e-9) & (exact <= high + 1e-9)).all())
    narrow, wide = (high - low for low, high in (found.bounds(x), found.quick_bounds(x)))
    assert bool((narrow <= wide + 1e-9).all())


def test_an_invariant_space_ends_a_run_and_leaves_its_measure():
    A = torch.diag(torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=F64))
    starts = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0], [1.0, 2.0]], dtype=F64)
    low, high = run(A, starts, 4).bounds(torch.tensor([1.5], dtype=F64))
    close(torch.cat([low, high]), torch.tensor([3 / 9, 3 / 9], dtype=F64), atol=1e-9)


def test_directions_stay_orthogonal():
    A, lanczos = spectrum(torch.logspace(3, -6, 60)), Lanczos(randn(60, 2), 30)
    for _ in range(30):
        lanczos.take(A @ lanczos.directions())
    Q = lanczos.Q[:, :30]
    close(Q @ Q.mT, torch.eye(30).expand(2, -1, -1), atol=1e-10)


def test_a_shorter_rule_is_the_one_of_fewer_products():
    A, starts = spectrum(torch.linspace(-1, 3, 30)), randn(30, 2)
    long, short = quadratures(lambda S, R: [A @ S, A @ R], [starts, starts], [12, 5])
    cut = long.shorter(5)
    assert short.T.shape == (2, 5, 5)
    close(cut.T, short.T, 1e-10)
    close(cut.beta, short.beta, 1e-10)
    assert long.shorter(12) is long
