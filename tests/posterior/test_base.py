"""Posteriors of every prior: the dense definition, the identities that define them, samples and eigenpairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dense
from infhess import Isotropic, Kronecker, Symmetric, condition
from posterior_cases import B0, EXACT, L0, NOISY, SCALAR, W0, N, agrees, data, m
from util import F64, RTOL, close, fast_and_long, orthogonal, randn, spd


@pytest.mark.parametrize("name", SCALAR)
@pytest.mark.parametrize("cols", [1, 4, 6, 9])
def test_scalar_priors_against_the_definition(name, cols):
    prior, reference = SCALAR[name]
    _, S, Y = data(cols=cols)
    agrees(condition(prior(B0, W0, L0), S, Y), reference(B0, W0, L0, S.numpy(), Y.numpy()))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("prior", NOISY.values(), ids=NOISY)
def test_dtypes(prior, dtype):
    _, S, Y = data()
    posterior = condition(prior, S.to(dtype), Y.to(dtype))
    assert posterior.mean.dtype == dtype
    assert posterior.variance(S[:, 0].to(dtype), S[:, 0].to(dtype)).dtype == dtype
    close(posterior.mean.dense(), condition(prior, S, Y).mean.dense(), RTOL[dtype])


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


@fast_and_long("draws", 1500, 20000)
@pytest.mark.parametrize("prior", NOISY.values(), ids=NOISY)
def test_samples_have_the_posterior_mean_and_covariance(prior, draws, g):
    """Draws of B @ V: mean within 5 standard errors, covariance of all uᵀBv within 5 of its own, √(2/draws)."""
    _, S, Y = data(cols=3)
    posterior, V, U = condition(prior, S, Y), randn(N, 2, seed=11), randn(N, 3, seed=12)
    found = torch.stack([U.mT @ posterior.sample(V, generator=g) for _ in range(draws)]).reshape(-1, 6)
    u, v = U.repeat_interleave(2, 1), V.repeat(1, 3)
    expected = (U.mT @ (posterior.mean @ V)).reshape(-1)
    variance = posterior.variance(u, v)
    assert bool(((found.mean(0) - expected).abs() < 5 * (variance / draws).sqrt()).all())
    covariance = polarised(posterior, u, v)
    close(found.mT.cov(), covariance, 5 * (2 / draws) ** 0.5)


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


@pytest.mark.parametrize("kind", [Isotropic, Symmetric])
def test_the_evidence_does_not_cancel_when_noise_is_small(kind):
    """In float64 down to a noise of 1e-6 against the definition; float32 data gives what its own numbers say."""
    S = randn(8, 3)
    B = spd(8)
    for noise in (1e-2, 1e-4, 1e-6):
        Y = B @ S + noise * S.norm(dim=0) * randn(8, 3, seed=3)
        reference = (dense.symmetric if kind is Symmetric else dense.isotropic)(0.0, 1.0, noise, S.numpy(), Y.numpy())
        close(condition(kind(0.0, 1.0, noise), S, Y).log_evidence(), torch.tensor(reference.log_evidence()), 1e-3)
        single = condition(kind(0.0, 1.0, noise), S.float(), Y.float())
        double = condition(kind(0.0, 1.0, noise), S.float().double(), Y.float().double())
        if noise >= 1e-4:
            close(single.log_evidence(), double.log_evidence(), 0.05)


@pytest.mark.parametrize("name", ["isotropic", "symmetric"])
@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_noise_and_nearly_repeated_directions(name, noise):
    S = randn(8, 1) + 1e-6 * randn(8, 3, seed=1)
    Y = spd(8) @ S + 0.1 * noise * randn(8, 3, seed=2)
    kind, reference = {"isotropic": (Isotropic, dense.isotropic), "symmetric": (Symmetric, dense.symmetric)}[name]
    expected = reference(0.5, 1.0, noise, S.numpy(), Y.numpy())
    posterior = condition(kind(0.5, 1.0, noise), S, Y)
    close(posterior.mean.dense(), expected.mean, 1e-7)
    close(posterior.log_evidence(), torch.tensor(expected.log_evidence()), 1e-7)
