"""Isotropic, Kronecker and Symmetric against the dense definition, and the identities that define them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dense
import infhess
from infhess import Isotropic, Kronecker, Symmetric, condition
from util import F64, RTOL, close, orthogonal, randn, spd, spectrum

N, m = 6, 4
B0, W0, L0 = 1.5, 0.7, 0.3
SCALAR = {"isotropic": (Isotropic, dense.isotropic), "symmetric": (Symmetric, dense.symmetric)}


def data(n=N, cols=m, rows=None, seed=0, noise=0.1, symmetric=True):
    rows = n if rows is None else rows
    S = randn(n, cols, seed=seed)
    B = spd(n, seed + 1) if rows == n and symmetric else randn(rows, n, seed=seed + 1)
    return B, S, B @ S + noise * randn(rows, cols, seed=seed + 2)


def agrees(posterior, reference, rtol=1e-8):
    """Mean, variance of random and unit forms, evidence and solve, against the dense definition."""
    rows, cols = posterior.shape
    close(posterior.mean.dense(), reference.mean, rtol)
    for seed in range(3):
        u, v = randn(rows, seed=seed), randn(cols, seed=seed + 10)
        expected = reference.variance(u.numpy(), v.numpy())
        prior = float(u @ u) * float(v @ v)
        close(posterior.variance(u, v), torch.tensor(expected), atol=rtol * prior)
    close(posterior.log_evidence(), torch.tensor(reference.log_evidence()), rtol)
    if rows == cols:
        v = randn(rows)
        close(posterior.mean.solve(v), np.linalg.solve(reference.mean, v.numpy()), 1e-8)


@pytest.mark.parametrize("name", SCALAR)
@pytest.mark.parametrize("cols", [1, 4, 6, 9])
def test_scalar_priors_against_the_definition(name, cols):
    prior, reference = SCALAR[name]
    _, S, Y = data(cols=cols)
    agrees(condition(prior(B0, W0, L0), S, Y), reference(B0, W0, L0, S.numpy(), Y.numpy()))


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


# ---- identities

EXACT = {
    "isotropic": Isotropic(B0, W0),
    "symmetric": Symmetric(B0, W0),
    "kronecker": Kronecker(B0, spd(N, 3), spd(N, 4)),
    "diagonal": Kronecker(B0, randn(N, seed=3).abs() + 0.1, 1.0),
}
NOISY = {
    "isotropic": Isotropic(B0, W0, L0),
    "symmetric": Symmetric(B0, W0, L0),
    "kronecker": Kronecker(B0, spd(N, 3), spd(N, 4), spd(N, 5), 0.3),
}


@pytest.mark.parametrize("prior", EXACT.values(), ids=EXACT)
def test_exact_products_interpolate(prior):
    _, S, Y = data(noise=0.0)
    posterior = condition(prior, S, Y)
    close(posterior.mean @ S, Y, 1e-9)
    close(posterior.variance(randn(N, m, seed=7), S), torch.zeros(m), atol=1e-9)


@pytest.mark.parametrize("prior", EXACT.values(), ids=EXACT)
def test_N_exact_products_recover_B(prior):
    B, S, Y = data(cols=N, noise=0.0)
    close(condition(prior, S, Y).mean.dense(), B, 1e-8)


@pytest.mark.parametrize("prior", EXACT.values(), ids=EXACT)
def test_repeated_directions_whose_products_agree_are_fine(prior):
    _, S, Y = data(noise=0.0)
    again = condition(prior, torch.cat([S, 2 * S[:, :1]], 1), torch.cat([Y, 2 * Y[:, :1]], 1))
    close(again.mean.dense(), condition(prior, S, Y).mean.dense(), 1e-9)


@pytest.mark.parametrize("prior", EXACT.values(), ids=EXACT)
def test_contradictory_exact_products_are_an_error(prior):
    _, S, Y = data(noise=0.0)
    with pytest.raises(ValueError, match="contradict"):
        condition(prior, torch.cat([S, S[:, :1]], 1), torch.cat([Y, Y[:, :1] + 0.1], 1)).mean  # noqa: B018


def test_exact_products_of_no_symmetric_matrix_are_an_error():
    _, S, Y = data(symmetric=False, rows=N, noise=0.0)
    with pytest.raises(ValueError, match="not symmetric"):
        condition(Symmetric(B0, W0), S, Y + randn(N, m, seed=8)).mean  # noqa: B018


@pytest.mark.parametrize("kind", [Isotropic, Symmetric])
def test_noise_to_zero_and_to_infinity(kind):
    _, S, Y = data(noise=0.0)
    close(condition(kind(B0, W0, 1e-7), S, Y).mean.dense(), condition(kind(B0, W0), S, Y).mean.dense(), 1e-9)
    vague = condition(kind(B0, W0, 1e9), S, Y)
    close(vague.mean.dense(), B0 * torch.eye(N, dtype=F64), 1e-9)
    u, v = randn(N), randn(N, seed=1)
    empty = W0**2 * (u @ u * (v @ v) if kind is Isotropic else (u @ u * (v @ v) + (u @ v) ** 2) / 2)
    close(vague.variance(u, v), empty, 1e-9)


@pytest.mark.parametrize("noise", [1e-10, 1e-4])
@pytest.mark.parametrize("kind", [Isotropic, Symmetric])
def test_a_direction_seen_twice_is_averaged_however_small_the_noise(kind, noise):
    _, S, Y = data(noise=0.0)
    a, b = (torch.cat([Y, Y[:, :1] + shift], 1) for shift in (0.2, -0.2))
    both = torch.cat([S, S[:, :1]], 1)
    middle = (
        condition(kind(B0, W0, noise), both, a).mean.dense() + condition(kind(B0, W0, noise), both, b).mean.dense()
    ) / 2
    close(middle, condition(kind(B0, W0, 0.0), S, Y).mean.dense(), 1e-6)


@pytest.mark.parametrize("prior", NOISY.values(), ids=NOISY)
def test_order_does_not_matter(prior):
    _, S, Y = data()
    order = torch.tensor([2, 0, 3, 1])
    a, b = condition(prior, S, Y), condition(prior, S[:, order], Y[:, order])
    close(a.mean.dense(), b.mean.dense(), 1e-11)
    close(a.log_evidence(), b.log_evidence(), 1e-11)


@pytest.mark.parametrize("prior", NOISY.values(), ids=NOISY)
def test_extend_is_condition_and_leaves_the_old_posterior_alone(prior):
    _, S, Y = data(cols=5)
    base = condition(prior, S[:, :2], Y[:, :2])
    before = base.mean.dense().clone()
    grown = base
    for j in range(2, 5):
        grown = grown.extend(S[:, j], Y[:, j])
    other = base.extend(S[:, 4], Y[:, 4])
    close(grown.mean.dense(), condition(prior, S, Y).mean.dense(), 1e-11)
    close(grown.log_evidence(), condition(prior, S, Y).log_evidence(), 1e-11)
    close(other.mean.dense(), condition(prior, S[:, [0, 1, 4]], Y[:, [0, 1, 4]]).mean.dense(), 1e-11)
    close(condition(prior, base.S, base.Y).mean.dense(), before, 1e-11)


@pytest.mark.parametrize("kind", [Isotropic, Symmetric])
def test_rotating_the_problem_rotates_the_posterior(kind):
    _, S, Y = data()
    Q = orthogonal(N, 4)
    prior = kind(B0, W0, L0)
    close(condition(prior, Q @ S, Q @ Y).mean.dense(), Q @ condition(prior, S, Y).mean.dense() @ Q.mT, 1e-11)


def test_a_symmetric_prior_has_a_symmetric_posterior():
    _, S, Y = data()
    mean = condition(Symmetric(B0, W0, L0), S, Y).mean.dense()
    close(mean, mean.mT, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", NOISY.values(), ids=NOISY)
def test_dtypes(prior, dtype):
    _, S, Y = data()
    posterior = condition(prior, S.to(dtype), Y.to(dtype))
    assert posterior.mean.dtype == dtype
    assert posterior.variance(S[:, 0].to(dtype), S[:, 0].to(dtype)).dtype == dtype
    close(posterior.mean.dense(), condition(prior, S, Y).mean.dense(), RTOL[dtype])


def test_half_precision_columns_are_kept_in_single():
    _, S, Y = data()
    posterior = condition(Isotropic(B0, W0, L0), S.bfloat16(), Y.bfloat16())
    assert posterior.mean.dtype == torch.float32


@given(
    n=st.integers(1, 8),
    cols=st.integers(1, 10),
    rank=st.integers(1, 10),
    s_scale=st.sampled_from([1e-9, 1e-3, 1.0, 1e3, 1e9]),
    y_scale=st.sampled_from([1e-9, 1.0, 1e9]),
    ratio=st.floats(0.01, 10),
    spread=st.floats(0, 3),
    seed=st.integers(0, 10**6),
)
@pytest.mark.parametrize("name", SCALAR)
def test_any_shape_rank_conditioning_and_scale(name, n, cols, rank, s_scale, y_scale, ratio, spread, seed):
    """Against the dense definition; then S, Y in other units change units and nothing else."""
    kind, reference = SCALAR[name]
    rank = min(rank, n, cols)
    sizes = 10 ** torch.linspace(0, -spread, cols, dtype=F64)
    S = randn(n, rank, seed=seed) @ randn(rank, cols, seed=seed + 1) * sizes
    Y = spd(n, seed + 2) @ S + 0.1 * S.norm(dim=0) * randn(n, cols, seed=seed + 3)
    posterior = condition(kind(1.0, 1.0, ratio), S, Y)
    expected = reference(1.0, 1.0, ratio, S.numpy(), Y.numpy())
    close(posterior.mean.dense(), expected.mean, 1e-8)
    close(posterior.log_evidence(), torch.tensor(expected.log_evidence()), 1e-6)
    c = y_scale / s_scale
    scaled = condition(kind(c, c, ratio * c), s_scale * S, y_scale * Y)
    close(scaled.mean.dense() / c, posterior.mean.dense(), 1e-11)


# ---- samples, eigenpairs, other array types, extremes


@pytest.mark.parametrize("prior", NOISY.values(), ids=NOISY)
def test_samples_have_the_posterior_mean_and_covariance(prior, g):
    """20,000 draws of B @ V: mean within 5 standard errors, covariance of all uᵀBv within 5 % of its size."""
    _, S, Y = data(cols=3)
    posterior, V, U = condition(prior, S, Y), randn(N, 2, seed=11), randn(N, 3, seed=12)
    draws = torch.stack([U.mT @ posterior.sample(V, generator=g) for _ in range(20000)]).reshape(-1, 6)
    u, v = U.repeat_interleave(2, 1), V.repeat(1, 3)
    expected = (U.mT @ (posterior.mean @ V)).reshape(-1)
    variance = posterior.variance(u, v)
    assert bool(((draws.mean(0) - expected).abs() < 5 * (variance / 20000).sqrt()).all())
    covariance = polarised(posterior, u, v)
    close(draws.mT.cov(), covariance, 0.05)


def polarised(posterior, u, v):
    """Cov(uᵢᵀBvᵢ, uⱼᵀBvⱼ) of all pairs from variances of sums, which need the dense covariance: exact for N = 6."""
    prior, S, Y = posterior.prior, posterior.S.numpy(), posterior.Y.numpy()
    if isinstance(prior, Kronecker):
        factors = (prior.left, prior.right, prior.noise_left, prior.noise_right)
        reference = dense.kronecker(prior.mean.numpy(), *(f.numpy() for f in factors), S, Y)
    else:
        kind = dense.symmetric if isinstance(prior, Symmetric) else dense.isotropic
        reference = kind(prior.mean, prior.scale, prior.noise, S, Y)
    forms = np.stack([np.kron(a, b) for a, b in zip(u.mT.numpy(), v.mT.numpy())])
    return torch.from_numpy(forms @ reference.covariance @ forms.T)


@pytest.mark.parametrize("prior", NOISY.values(), ids=NOISY)
def test_eigh_and_svd_are_those_of_the_mean(prior):
    _, S, Y = data()
    posterior = condition(prior, S, Y)
    mean = posterior.mean.dense()
    pairs, triplets = posterior.eigh(3), posterior.svd(3)
    close(pairs.values, torch.linalg.eigvalsh((mean + mean.mT) / 2).flip(0)[:3], 1e-10)
    close(pairs.std**2, posterior.variance(pairs.vectors, pairs.vectors), 1e-12)
    close(triplets.values, torch.linalg.svdvals(mean)[:3], 1e-10)
    close((mean.mT @ triplets.vectors).norm(dim=0), triplets.values, 1e-10)


def test_numpy_in_and_scipy_out():
    _, S, Y = data()
    posterior = condition(Isotropic(B0, W0, L0), S.numpy(), Y.numpy())
    np.testing.assert_allclose(posterior.mean.to_scipy() @ S.numpy(), posterior.mean @ S, rtol=1e-12)
    assert float(posterior.variance(S.numpy()[:, 0], S.numpy()[:, 0])) > 0


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_directions_whose_squares_leave_float32(size):
    _, S, Y = data()
    expected = condition(Isotropic(B0, W0, L0), S, Y).mean.dense()
    posterior = condition(Isotropic(B0, W0, L0), (size * S).float(), (size * Y).float())
    close(posterior.mean.dense(), expected, 1e-4)


def test_evidence_prefers_the_truth():
    """The evidence of data drawn from a prior is largest, on average, near that prior's noise."""
    n, cols, truth = 40, 12, 0.3
    totals = dict.fromkeys((0.03, truth, 3.0), 0.0)
    for seed in range(10):
        S = randn(n, cols, seed=seed)
        B = randn(n, n, seed=seed + 50)
        Y = B @ S + truth * S.norm(dim=0) * randn(n, cols, seed=seed + 100)
        for noise in totals:
            totals[noise] += float(condition(Isotropic(0.0, 1.0, noise), S, Y).log_evidence())
    assert max(totals, key=totals.get) == truth


def test_error_bars_of_the_isotropic_model_hold_under_the_model():
    """B and the noise drawn from the prior: 95 % of uᵀBv lie within 1.96 standard deviations (2,000 trials, ± 2 %)."""
    n, cols = 12, 5
    hits = 0
    for seed in range(100):
        S, B = randn(n, cols, seed=seed), randn(n, n, seed=seed + 1000)
        Y = B @ S + 0.5 * S.norm(dim=0) * randn(n, cols, seed=seed + 2000)
        posterior = condition(Isotropic(0.0, 1.0, 0.5), S, Y)
        U, V = randn(n, 20, seed=seed + 3000), randn(n, 20, seed=seed + 4000)
        error = (U * (B @ V - posterior.mean @ V)).sum(0)
        hits += int((error.abs() < 1.96 * posterior.variance(U, V).sqrt()).sum())
    assert 0.93 < hits / 2000 < 0.97


# ---- bad input

GOOD = (torch.eye(4, 2, dtype=F64), torch.ones(4, 2, dtype=F64))


def changed(which, value):
    S, Y = (t.clone() for t in GOOD)
    (S if which == "S" else Y)[1, 1] = value
    return S, Y


BAD = {
    "shapes": ((torch.ones(4, 2), torch.ones(4, 3)), ValueError, "one column an observation"),
    "vector": ((torch.ones(4), torch.ones(4)), ValueError, "one column an observation"),
    "rows": ((torch.randn(3, 2, dtype=F64), GOOD[1]), ValueError, "use Kronecker"),
    "empty": ((torch.ones(4, 0), torch.ones(4, 0)), ValueError, "at least one observation"),
    "nan": (changed("Y", float("nan")), ValueError, "Y: observation 1 holds NaN"),
    "infinity": (changed("S", float("inf")), ValueError, "S: observation 1 holds NaN or inf"),
    "zero": (changed("S", 0.0), ValueError, "direction 1 is zero"),
    "integers": ((torch.ones(4, 2, dtype=torch.int64), GOOD[1]), TypeError, "floating-point"),
    "complex": ((GOOD[0].to(torch.complex128), GOOD[1]), TypeError, "floating-point"),
    "dtypes": ((GOOD[0].float(), GOOD[1]), TypeError, "dtype"),
    "devices": ((GOOD[0], torch.ones(4, 2, dtype=F64, device="meta")), ValueError, "meta"),
    "words": (("many", GOOD[1]), TypeError, "expected a tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data(case):
    (S, Y), error, message = BAD[case]
    with pytest.raises(error, match=message):
        condition(Symmetric(1.0, 1.0, 0.1), S, Y)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Isotropic(1.0, -1.0), ValueError, "scale: expected a number above 0, got -1"),
        (lambda: Isotropic(1.0, 1.0, -0.1), ValueError, "noise: expected a number of at least 0"),
        (lambda: Isotropic(float("nan")), ValueError, "mean: expected a finite number"),
        (lambda: Isotropic("one"), TypeError, "mean: expected one number"),
        (lambda: Symmetric(1.0, 0.0), ValueError, "scale"),
        (lambda: infhess.CurvatureShaped(-1.0), ValueError, "ridge"),
        (lambda: Kronecker(left=-1.0), ValueError, "left: expected numbers of at least 0"),
        (lambda: Kronecker(left=0.0), ValueError, "left: expected a positive scale"),
        (lambda: Kronecker(left=torch.tensor([[1.0, 2.0], [2.0, 1.0]])), ValueError, "positive semi-definite"),
        (lambda: Kronecker(left=torch.tensor([[1.0, 2.0], [0.0, 1.0]])), ValueError, "symmetric"),
        (lambda: Kronecker(left=torch.ones(2, 2, 2)), ValueError, "a float, a vector or a matrix"),
        (lambda: Kronecker(mean=torch.tensor([float("inf")])), ValueError, "finite"),
        (lambda: condition(Kronecker(left=torch.ones(3)), *GOOD), ValueError, "left: expected 4 rows"),
        (lambda: condition(Kronecker(mean=torch.ones(3)), *GOOD), ValueError, "mean: expected"),
        (lambda: condition("isotropic", *GOOD), TypeError, "prior: expected"),
        (lambda: condition(Isotropic(), *GOOD).log_evidence(), ValueError, "not defined for exact products"),
        (lambda: condition(Kronecker(), *GOOD).log_evidence(), ValueError, "not defined for exact products"),
        (lambda: condition(Isotropic(), *GOOD).mean.solve(GOOD[0]), ValueError, "damping"),
        (lambda: condition(Isotropic(), *GOOD).variance(torch.ones(4), torch.ones(3)), ValueError, "v: expected shape"),
        (lambda: condition(Isotropic(), *GOOD).variance(torch.ones(4), torch.ones(4, 2)), ValueError, "as many u as v"),
        (lambda: condition(Isotropic(), *GOOD).extend(torch.ones(4), torch.ones(3)), ValueError, "expected s"),
        (
            lambda: condition(Isotropic(), *GOOD).extend(torch.zeros(4, dtype=F64), GOOD[1][:, 0]),
            ValueError,
            "direction 2",
        ),
        (lambda: condition(Isotropic(), *GOOD).sample(torch.ones(3)), ValueError, "V: expected shape"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_failed_extend_leaves_everything_as_it_was():
    posterior = condition(Isotropic(1.0, 1.0, 0.1), *data()[1:])
    before = posterior.mean.dense().clone()
    with pytest.raises(ValueError, match="step 4"):
        posterior.extend(torch.ones(N, dtype=F64), torch.full((N,), float("nan"), dtype=F64))
    close(condition(posterior.prior, posterior.S, posterior.Y).mean.dense(), before, 1e-13)
    assert len(posterior) == m


def test_spectrum_utility():
    close(torch.linalg.eigvalsh(spectrum([3.0, 1.0])), torch.tensor([1.0, 3.0]), 1e-12)
