"""Ridge-Nyström: the formula, the ridge from asymmetry, clipping, and what is said where noise is unknown."""

from __future__ import annotations

import math

import pytest
import torch

from infhess import CurvatureShaped, Kronecker, Products, condition, infer, preconditioner
from util import F64, close, fast_and_long, randn, spd, spectrum

N, m = 20, 8


def spectrum_of(size):
    """Eigenvalues 100 / i² + 0.01: a few large ones and a long tail, as Hessians have."""
    return 100 / torch.arange(1, size + 1, dtype=F64) ** 2 + 0.01


def mini_batch_source(values, batch, generator):
    """Products with XᵀX/batch, where fresh rows X of covariance B are drawn for each product; and B itself."""
    size = len(values)
    Q = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=F64)).Q
    root = (Q * values.sqrt()) @ Q.mT

    def rows():
        return torch.randn(batch, size, generator=generator, dtype=F64) @ root

    def product(s):
        X = rows()
        return X.mT @ (X @ s) / batch

    return Products(product, lambda: rows().mean(0), size, points=batch), root @ root


def condition_number(B, posterior):
    """λ₁/λ_N of P B P with the preconditioner that a posterior gives."""
    P = preconditioner(posterior).power(0.5).dense()
    values = torch.linalg.eigvalsh(P @ B @ P)
    return float(values[-1] / values[0])


def fresh_products(B, S, batch, seed=0):
    """Products of directions with a fresh Wishart matrix L W Lᵀ/batch of `batch` points each: noise of the shape of B.

    The points are not drawn: by Bartlett's decomposition W v = c² v + c |v| z, with c² of χ² and z normal, orthogonal to v.
    """
    L = torch.linalg.cholesky(B)
    V = L.mT @ S
    c = torch.distributions.Chi2(torch.tensor(float(batch), dtype=F64))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        squares = c.sample((S.shape[1],))
    U, Z = V / V.norm(dim=0), randn(*V.shape, seed=seed)
    Z = Z - U * (U * Z).sum(0)
    return L @ (squares * V + squares.sqrt() * V.norm(dim=0) * Z) / batch


def test_the_mean_is_the_ridge_nystrom_formula():
    B, S = spd(N), randn(N, m, seed=1)
    Y, rho = B @ S, 0.1
    T = S.mT @ Y
    expected = Y @ torch.linalg.inv(T + rho * torch.diag(T.diagonal())) @ Y.mT
    close(condition(CurvatureShaped(rho), S, Y).mean.dense(), expected, 1e-9)


def test_it_is_the_papers_posterior_with_the_matrix_plugged_in():
    """W = V = B, Λ = √ρ B and exact Y: Kronecker and CurvatureShaped are two names of one mean."""
    B, S, rho = spd(N), randn(N, m, seed=1), 0.1
    plugged = Kronecker(0.0, B, None, math.sqrt(rho) * B)
    close(condition(CurvatureShaped(rho), S, B @ S).mean.dense(), condition(plugged, S, B @ S).mean.dense(), 1e-8)


def test_N_exact_products_recover_a_positive_matrix():
    B, S = spd(N), randn(N, N, seed=1)
    close(condition(CurvatureShaped(0.0), S, B @ S).mean.dense(), B, 1e-6)


@pytest.mark.parametrize("batch", [40, 160, 640])
def test_the_ridge_from_asymmetry_finds_the_noise_level(batch):
    """Gaussian rows have kurtosis factor 1 in Λ = √(c/n) B: the ridge is 1/batch, here within 40 % on 20 repeats' median."""
    B = spectrum(torch.logspace(0, 2, N))
    noise = []
    for seed in range(20):
        S = randn(N, 10, seed=seed)
        noise.append(condition(CurvatureShaped(), S, fresh_products(B, S, batch, seed + 100)).noise)
    assert 0.6 / batch < sorted(noise)[10] < 1.4 / batch


def test_one_batch_for_all_directions_leaves_the_noise_unknown_not_zero():
    S = randn(N, m)
    posterior = condition(CurvatureShaped(), S, spd(N) @ S)
    assert posterior.noise is None
    assert math.isnan(float(posterior.variance(S[:, 0], S[:, 0])))
    assert bool(posterior.eigh(2).std.isnan().all())
    with pytest.raises(ValueError, match="noise of these products is unknown"):
        posterior.sample(S[:, 0])
    float32 = condition(CurvatureShaped(), S.float(), (spd(N) @ S).float())
    assert float32.noise is None


def test_few_directions_leave_the_noise_unknown():
    B, S = spd(N), randn(N, 5)
    assert condition(CurvatureShaped(), S, fresh_products(B, S, 10)).noise is None


def test_an_indefinite_core_is_clipped():
    B = spectrum([10.0] * 3 + [-5.0] * 3 + [0.1] * (N - 6))
    S = randn(N, m)
    values = torch.linalg.eigvalsh(condition(CurvatureShaped(0.01), S, B @ S).mean.dense())
    assert float(values[0]) > -1e-10 * float(values[-1])
    assert bool(torch.isfinite(values).all())


def test_the_positive_part_of_an_indefinite_matrix_is_found():
    """Negative eigenvalues are clipped, not inverted: exactly along a Krylov space, roughly along random directions."""
    B = spectrum([5.0, 3.0, 2.0, -4.0, -1.0, *torch.linspace(0.3, -0.3, 45).tolist()])
    g = randn(50, seed=9)
    posterior = infer(Products(lambda s: B @ s, lambda: g.clone(), 50), 20)
    close(posterior.eigh(3).values, torch.tensor([5.0, 3.0, 2.0]), 1e-3)
    assert float(torch.linalg.eigvalsh(posterior.mean.dense())[0]) > -1e-9
    for seed in range(5):
        rough = infer(Products(B, generator=torch.Generator().manual_seed(seed)), 20).eigh(1).values
        assert 3.0 < float(rough) < 10.0


def test_zero_curvature_along_a_direction_is_not_a_division_by_zero():
    B = torch.diag(torch.tensor([1.0, 2.0] + [0.0] * (N - 2), dtype=F64))
    S = torch.eye(N, 4, dtype=F64)
    close(condition(CurvatureShaped(), S, B @ S).mean.dense(), B, 1e-12)
    nothing = condition(CurvatureShaped(), S[:, 2:], (B @ S)[:, 2:])
    close(nothing.mean.dense(), torch.zeros(N, N), atol=0.0)
    with pytest.raises(ValueError, match="no positive eigenvalue"):
        preconditioner(nothing)


def test_variance_is_that_of_refreshed_noise():
    """Over 100 refreshed sets of products, the variance of uᵀB_m u is within 40 % of what one set predicts on average.

    With products in most directions: where few were taken, B_m is smaller than B and so is the noise it predicts.
    """
    B, S, batch = spectrum(torch.logspace(2, 0, N)), randn(N, 16, seed=1), 10000
    u = torch.linalg.eigh(B).eigenvectors[:, -1]
    values, predicted = [], []
    for seed in range(100):
        posterior = condition(CurvatureShaped(1 / batch), S, fresh_products(B, S, batch, seed))
        values.append(float(u @ (posterior.mean @ u)))
        predicted.append(float(posterior.variance(u, u)))
    ratio = float(torch.tensor(values).var()) / (sum(predicted) / len(predicted))
    assert 0.6 < ratio < 1.4


@fast_and_long("draws", 1000, 10000)
def test_samples_have_the_mean_and_the_variance(draws, g):
    B, S = spd(N), randn(N, m)
    posterior = condition(CurvatureShaped(0.05), S, fresh_products(B, S, 50))
    u, V = randn(N, seed=3), randn(N, 2, seed=4)
    found = torch.stack([u @ posterior.sample(V, generator=g) for _ in range(draws)])
    expected = torch.stack([posterior.variance(u, V[:, i]) for i in range(2)])
    close(found.var(0), expected, 5 * (2 / draws) ** 0.5)
    assert bool(((found.mean(0) - u @ (posterior.mean @ V)).abs() < 5 * (expected / draws).sqrt()).all())


def test_no_evidence():
    with pytest.raises(ValueError, match="not defined for CurvatureShaped"):
        condition(CurvatureShaped(), randn(N, m), randn(N, m)).log_evidence()


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_scaling_products_or_directions_scales_the_mean_and_nothing_else(scale):
    B, S = spd(N), randn(N, m)
    Y = fresh_products(B, S, 50)
    reference = condition(CurvatureShaped(), S, Y)
    close(condition(CurvatureShaped(), S, scale * Y).mean.dense() / scale, reference.mean.dense(), 1e-10)
    close(condition(CurvatureShaped(), scale * S, scale * Y).mean.dense(), reference.mean.dense(), 1e-10)
    assert math.isclose(condition(CurvatureShaped(), S, scale * Y).noise, reference.noise, rel_tol=1e-9)


def test_the_default_beats_the_printed_method_as_a_preconditioner():
    """24 noisy products of a 200×200 matrix, five seeds: the condition number after ours is below that after the paper's."""
    from infhess import Isotropic

    wins = 0
    for seed in range(5):
        g = torch.Generator().manual_seed(seed)
        source, B = mini_batch_source(spectrum_of(200), 256, g)
        ours = condition_number(B, infer(source, 24))
        pilot = infer(source, 24, method="paper")
        assert isinstance(pilot.prior, Isotropic)
        wins += ours < condition_number(B, pilot)
    assert wins == 5


def test_rounding_below_zero_is_no_negative_curvature():
    # One direction has hardly any curvature: rounding is that of the largest, not of the smallest.
    B = torch.zeros(6, 6, dtype=F64)
    B[0, 0] = 1.0
    B[1, 1] = -1e-15
    posterior = condition(CurvatureShaped(ridge=0.1), torch.eye(6, 2, dtype=F64), B[:, :2])
    assert posterior.shift == 0
    B[1, 1] = -1e-3
    assert condition(CurvatureShaped(ridge=0.1), torch.eye(6, 2, dtype=F64), B[:, :2]).shift == pytest.approx(1e-3)


@pytest.mark.parametrize(("apart", "rank"), [(5e-5, 1), (1e-3, 16)])
def test_directions_that_differ_by_rounding_of_the_largest_count_once(apart, rank):
    # Of T = (1 − ε) 11ᵀ + ε I the eigenvalues are 16 and ε: single precision knows them to 8 · 16 · eps · 16 = 2.4e-4.
    T = (1 - apart) * torch.ones(16, 16) + apart * torch.eye(16)
    mean = condition(CurvatureShaped(ridge=0.1), torch.eye(16), T).mean.dense().double()
    assert int((torch.linalg.eigvalsh(mean) > 1e-9).sum()) == rank
