"""Gauss quadrature by Lanczos: moments, bounds that no measure leaves, and the law of shares against SciPy's."""

from __future__ import annotations

import pytest
import torch

from infhess.spectra.quadrature import Lanczos, quadratures
from infhess.spectra.shares import bracket_deviate, kolmogorov, share_bound
from util import F64, close, randn, spectrum


def run(A, starts, most):
    return quadratures(lambda S, R: (A @ S, R), starts, starts[:, :0], most)[0]


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


def test_shares_have_the_law_of_random_starts():
    stats = pytest.importorskip("scipy.stats")
    for count in (50.0, 500.0, 1e5):
        F = torch.tensor([0.02, 0.3, 0.9], dtype=F64)
        for z in (-1.96, 0.5, 1.96):
            p = float(torch.special.ndtr(torch.tensor(z, dtype=F64)))
            f = torch.from_numpy(stats.beta.ppf(p, count * F.numpy(), count * (1 - F).numpy()))
            close(share_bound(f, torch.tensor(z, dtype=F64), count), F, rtol=5e-3)
    assert kolmogorov(0.99) == pytest.approx(stats.kstwobign.ppf(0.99), rel=1e-6)


def test_a_wide_bracket_needs_one_side_alone():
    se = torch.ones(3, dtype=F64)
    z = bracket_deviate(0.95, torch.tensor([0.0, 1.0, 100.0], dtype=F64), se)
    assert z[0] == pytest.approx(1.960, abs=1e-3)
    assert 1.645 < float(z[1]) < 1.960
    assert z[2] == pytest.approx(1.645, abs=1e-3)
