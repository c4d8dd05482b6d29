"""Posteriors at the edges of a dtype: tiny and huge matrices, half precision, factors that are nearly singular."""

from __future__ import annotations

import pytest
import torch

from infhess import CurvatureShaped, Isotropic, Kronecker, Symmetric, condition, load
from util import F64, close, randn, spd

N = 6
PRIORS = {
    "isotropic": Isotropic,
    "symmetric": Symmetric,
    "kronecker": lambda mean, scale, noise: Kronecker(mean, scale, noise_left=noise),
    "curvature": lambda mean, scale, noise: CurvatureShaped(0.1),
}


@pytest.mark.parametrize("unit", [1e-30, 1e30])
@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
def test_the_unit_of_a_single_precision_matrix_does_not_matter(prior, unit):
    S, v = randn(N, 3).float(), randn(N, seed=7).float()
    Y = (spd(N) @ S.double() + 0.1 * randn(N, 3, seed=1)).float()
    plain = condition(prior(0.5, 1.3, 0.3), S.double(), Y.double())
    scaled = condition(prior(0.5 * unit, 1.3 * unit, 0.3 * unit), S, (Y.double() * unit).float())
    close(scaled.mean.dense().double() / unit, plain.mean.dense(), 1e-6)
    damped = scaled.mean.solve(v, damping=5 * unit).double() * unit
    close(damped, plain.mean.solve(v.double(), damping=5.0), 1e-5)
    close(scaled.eigh(2).std.double() / unit, plain.eigh(2).std, 1e-5)
    if prior is not PRIORS["curvature"]:
        moved = scaled.log_evidence() + Y.numel() * torch.tensor(unit, dtype=F64).log()
        close(moved, plain.log_evidence(), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("prior", [Isotropic(1.0), Symmetric(1.0), Kronecker(1.0)], ids=lambda p: type(p).__name__)
def test_the_rounding_of_half_precision_is_no_contradiction(prior, dtype, tmp_path):
    B, S = spd(N), randn(N, 2 * N).to(dtype)
    posterior = condition(prior, S, (B @ S.double()).to(dtype))
    close(posterior.mean.dense().double(), B, 20 * torch.finfo(dtype).eps)
    posterior.save(tmp_path / "p")
    assert torch.equal(load(tmp_path / "p").mean.dense(), posterior.mean.dense())


def test_exact_products_are_met_whatever_the_left_factor():
    W = torch.diag(torch.logspace(0, -12, N, dtype=F64))
    rotation = torch.linalg.qr(randn(N, N)).Q
    S, Y = randn(4, 2), randn(N, 2, seed=1)
    posterior = condition(Kronecker(0.3, rotation @ W @ rotation.mT, 1.0), S, Y)
    close(posterior.mean @ S, Y, 1e-13)


@pytest.mark.parametrize("unit", [1e-30, 1e30])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (6, 6)])
def test_singular_values_and_eigenvalues_by_products_have_no_unit(shape, unit):
    """A rectangular mean, and a diagonal plus low rank, are decomposed by products alone: squares of them are taken."""
    S, Y = randn(shape[1], 3).float(), randn(shape[0], 3, seed=1).float()
    mean = torch.linspace(0.5, 1.0, 6, dtype=F64) if shape == (6, 6) else 0.5
    plain = condition(Kronecker(mean, 1.3, noise_left=0.3), S.double(), Y.double())
    scaled = condition(Kronecker(mean * unit, 1.3 * unit, noise_left=0.3 * unit), S, (Y.double() * unit).float())
    close(scaled.svd(3).values.double() / unit, plain.svd(3).values, 1e-5)
    if shape == (6, 6):
        close(scaled.eigh(3).values.double() / unit, plain.eigh(3).values, 1e-5)


def test_a_draw_along_vectors_of_any_length():
    posterior = condition(Symmetric(noise=0.3), randn(N, 2), randn(N, 2, seed=1))
    V = randn(N, 2, seed=2)
    draws = [posterior.sample(V * unit, torch.Generator().manual_seed(0)) / unit for unit in (1.0, 1e-200, 1e200)]
    close(draws[1], draws[0], 1e-12)
    close(draws[2], draws[0], 1e-12)


S, Y = randn(N, 2), randn(N, 2, seed=1)
BAD = {
    "sparse": (lambda: condition(Isotropic(), S.to_sparse(), Y), TypeError, "dense tensor.*to_dense"),
    "sparse factor": (lambda: Kronecker(left=torch.eye(N).to_sparse()), TypeError, "left: expected a dense tensor"),
    "integer beyond floats": (lambda: Isotropic(10**400), ValueError, "mean: expected a finite number"),
    "scale": (lambda: Isotropic(scale=1e200), ValueError, "scale: expected a number from"),
    "ratio": (lambda: Symmetric(scale=1e-100, noise=1e100), ValueError, "noise / scale: expected a number from"),
    "factor": (lambda: Kronecker(left=1e-200), ValueError, "left: expected a number from"),
    "product": (lambda: condition(Isotropic(), S, 1e200 * Y), ValueError, "shorter than.*change the unit"),
    "one number": (lambda: condition(Isotropic(), S[:1], 1e200 * Y[:1]), ValueError, "shorter than.*change the unit"),
    "next product": (lambda: condition(Isotropic(), S, Y).extend(S[:, 0], 1e200 * Y[:, 0]), ValueError, "shorter than"),
    "draw": (lambda: condition(Isotropic(), S, Y).sample(S * torch.nan), ValueError, "V: expected finite vectors"),
}


@pytest.mark.parametrize(("call", "error", "message"), BAD.values(), ids=BAD)
def test_what_no_double_can_hold_is_said(call, error, message):
    with pytest.raises(error, match=message):
        call()
