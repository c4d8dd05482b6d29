"""Hard numbers: near-repeated directions, tiny noise, tiny and huge scales, callables that misbehave. All against dense."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

import dense
import infhess
from infhess import CurvatureShaped, Isotropic, Kronecker, LowRank, Products, Symmetric, condition, infer
from util import F64, close, randn, spd, spectrum

EXACT = {"isotropic": Isotropic(), "symmetric": Symmetric(), "kronecker": Kronecker()}


@pytest.mark.parametrize("eps", [1e-3, 1e-6, 1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize("prior", EXACT.values(), ids=EXACT)
def test_exact_products_along_directions_that_are_nearly_the_same(prior, eps):
    B = torch.diag(torch.linspace(1, 2, 50, dtype=F64))
    s, d = randn(50), randn(50, seed=1)
    S = torch.stack([s, s + eps * d], 1)
    posterior = condition(prior, S, B @ S)
    close(posterior.mean @ S, B @ S, 1e-8)
    assert float(torch.linalg.matrix_norm(posterior.mean.dense(), 2)) < 2.5
    assert float(posterior.variance(s, s)) < 1e-10 * float(s @ s) ** 2


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


@pytest.mark.parametrize("noise", [1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_small_noise_gives_small_error_bars_not_rounding(dtype, noise):
    S = torch.linalg.qr(randn(200, 5)).Q.to(dtype)
    posterior = condition(Isotropic(0.0, 1.0, noise), S, S)
    u = S[:, 0]
    if dtype == F64 or noise > 1e-6:
        close(posterior.variance(u, u).sqrt(), noise, 0.05)
    assert float(posterior.variance(u, u).sqrt()) < 2e-6 + 2 * noise


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_samples_of_a_symmetric_matrix_are_symmetric(noise, g):
    eye = torch.eye(4, dtype=F64)
    posterior = condition(Symmetric(0.0, 1.0, noise), eye[:, :2], eye[:, :2])
    for _ in range(5):
        draw = posterior.sample(eye, generator=g)
        close(draw, draw.mT, 1e-12)
        if noise == 0:
            close(draw[:2], eye[:2], 1e-12)


def test_samples_of_blocks_that_touch_the_directions_have_the_right_covariance(g):
    S = randn(4, 2)
    posterior = condition(Symmetric(0.3, 1.0, 0.4), S, spd(4) @ S)
    reference = dense.symmetric(0.3, 1.0, 0.4, S.numpy(), (spd(4) @ S).numpy())
    for V in (torch.eye(4, dtype=F64), torch.stack([S[:, 0], randn(4, seed=5)], 1), randn(4, 6, seed=6)):
        draws = torch.stack([posterior.sample(V, generator=g).flatten() for _ in range(8000)])
        forms = np.kron(np.eye(4), V.numpy().T)
        close(draws.mT.cov(), forms @ reference.covariance @ forms.T, 0.08)


def test_singular_noise_and_directions_that_depend_on_each_other():
    W, L = torch.tensor([[1.0, 0.3], [0.3, 0.8]], dtype=F64), torch.tensor([0.0, 0.5], dtype=F64)
    for seed in range(20):
        S, B = randn(1, 3, seed=seed), randn(2, 1, seed=seed + 50)
        exact = condition(Kronecker(left=W, right=1.0, noise_left=L, noise_right=1.0), S, B @ S).mean.dense()
        tiny = dense.kronecker(
            0.0, W.numpy(), 1.0, (torch.diag(L) + 1e-10 * torch.eye(2)).numpy(), 1.0, S.numpy(), (B @ S).numpy()
        )
        close(exact, tiny.mean, 1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_a_repeated_direction_in_float32(seed):
    s, A = randn(100, seed=seed).float(), randn(100, 100, seed=seed + 10).float()
    B = A + A.mT
    S = torch.stack([s, 3.1 * s], 1)
    for prior in EXACT.values():
        posterior = condition(prior, S, B @ S)
        close((posterior.mean @ s), B @ s, 1e-3)
        assert float(torch.linalg.matrix_norm(posterior.mean.dense(), 2)) < 1.5 * float(torch.linalg.matrix_norm(B, 2))


def test_repeated_directions_in_tiny_units_do_not_contradict():
    B, s = torch.diag(torch.linspace(1, 2, 50, dtype=F64)), randn(50)
    S = torch.stack([s, 2 * s, 3 * s], 1)
    close(condition(Kronecker(left=1e-9), S, 1e-9 * (B @ S)).mean @ s, 1e-9 * (B @ s), 1e-9)


def test_a_small_contradiction_beside_a_large_product_is_found():
    S = torch.eye(3, dtype=F64)[:, [0, 0, 1]]
    Y = torch.stack(
        [torch.eye(3, dtype=F64)[0], 1.01 * torch.eye(3, dtype=F64)[0], 1e11 * torch.eye(3, dtype=F64)[1]], 1
    )
    for prior in EXACT.values():
        with pytest.raises(ValueError, match="contradict"):
            condition(prior, S, Y).mean  # noqa: B018


@pytest.mark.parametrize(("dtype", "b0"), [(F64, 1e-6), (F64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize("kind", [Isotropic, Symmetric, Kronecker])
def test_solve_is_as_good_as_a_dense_solve(kind, dtype, b0):
    B = spectrum([1.0, 0.7, 0.4, 0.2, 0.1] + [b0] * 55)
    S = randn(60, 8)
    prior = Kronecker(b0) if kind is Kronecker else kind(b0, 1.0)
    mean, v = condition(prior, S.to(dtype), (B @ S).to(dtype)).mean, randn(60, seed=3).to(dtype)
    A = mean.dense()
    x, y = mean.solve(v), torch.linalg.solve(A, v)
    ours, theirs = ((A @ z - v).norm() / v.norm() for z in (x, y))
    assert float(ours) < 30 * float(theirs) + 1e-6 * float(torch.linalg.cond(A)) * torch.finfo(dtype).eps * 1e6


def test_a_mean_without_an_identity_solves_where_it_is_regular():
    B, S = randn(4, 4), randn(4, 4, seed=1)
    v = randn(4, seed=2)
    close(condition(Isotropic(), S, B @ S).mean.solve(v), torch.linalg.solve(B, v), 1e-9)
    one = condition(Isotropic(), torch.ones(1, 1, dtype=F64), 3 * torch.ones(1, 1, dtype=F64))
    close(one.mean.solve(torch.ones(1)), torch.tensor([1 / 3]), 1e-6)
    gap = LowRank(torch.tensor([0.0, 1.0, 2.0], dtype=F64), torch.eye(3, 1, dtype=F64))
    with pytest.raises(ValueError, match="damping"):
        gap.solve(torch.ones(3, dtype=F64))


def test_eigenpairs_of_a_large_diagonal_plus_low_rank():
    d = torch.rand(20000, generator=torch.Generator().manual_seed(0), dtype=F64) + 0.5
    L = randn(20000, 3) / 50
    A = LowRank(d, L)
    values, vectors, _ = A.eigh(3)
    close(A @ vectors, vectors * values, 1e-6)
    assert float(values[-1]) > 1.5


# ---- callables and arrays


def test_a_product_that_is_its_own_argument():
    G = [5 * randn(6, seed=i) for i in range(4)]
    for method, prior in (("paper", Isotropic(0.5, 1.0, 0.1)), ("curvature", None)):
        means = []
        for matvec in (lambda s: s, lambda s: s.clone()):
            g = iter(G)
            means.append(infer(Products(matvec, lambda g=g: next(g), 6), 3, method=method, prior=prior).mean.dense())
        close(means[0], means[1], 1e-12)


def test_a_matvec_that_alters_its_argument_is_named():
    with pytest.raises(ValueError, match="altered its argument"):
        infer(Products(lambda s: s.mul_(2), lambda: randn(6), 6), 3)


def test_the_papers_method_ends_where_the_krylov_space_is_exhausted():
    eye = torch.eye(5, dtype=F64)
    for prior in (None, Isotropic(1.0)):
        posterior = infer(Products(lambda s: 2 * s, lambda: eye[0].clone(), 5), 4, method="paper", prior=prior)
        close(posterior.mean @ eye[0], 2 * eye[0], 1e-9)


def test_numpy_views_and_read_only_arrays():
    S, Y = randn(6, 3).numpy(), randn(6, 3, seed=1).numpy()
    read_only = Y[:, ::-1]
    read_only.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = condition(Isotropic(1.0, 1.0, 0.1), S[:, ::-1], read_only)
        close(posterior.mean.dense(), condition(Isotropic(1.0, 1.0, 0.1), S, Y).mean.dense(), 1e-12)
        v = np.arange(6.0)[::-1]
        close(posterior.mean @ v, posterior.mean.to_scipy() @ v, 1e-12)


def test_numpy_callables_without_a_gradient():
    A = np.diag([3.0, 2.0, 1.0])
    assert infer(Products(lambda s: A @ np.asarray(s, dtype=np.float64), size=3), 3).shape == (3, 3)
    close(Products(A).matvec(np.ones(3)), torch.tensor([3.0, 2.0, 1.0]), 1e-12)
    with pytest.raises(ValueError, match=r"s: expected shape \(3,\)"):
        Products(A).matvec(torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sources(dtype):
    g = torch.Generator().manual_seed(0)
    source = Products(lambda s: (2 * s).to(dtype), lambda: torch.randn(8, generator=g).to(dtype), 8)
    close(infer(source, 3).eigh(2).values, torch.tensor([2.0, 2.0]), 0.05)
    assert infer(torch.eye(5).to(dtype), 2).mean.dtype == torch.float32


def test_infer_of_a_matrix_takes_a_generator():
    A = spd(9)
    first, again = (infer(A, 3, generator=torch.Generator().manual_seed(4)).mean.dense() for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: condition(Isotropic(), *2 * (torch.eye(3),)).sample(torch.ones(3), generator=3),
            TypeError,
            "torch.Generator",
        ),
        (lambda: infer(spd(3), 2, prior="x"), TypeError, "prior: expected Isotropic"),
        (lambda: infer(spd(3), 2, prior=Isotropic), TypeError, "prior: expected Isotropic"),
        (lambda: infer(spd(3), 2, method="paper", prior=Isotropic()), TypeError, "mean other than 0"),
        (lambda: Products(3, None, 3), TypeError, "matvec: expected a callable"),
        (lambda: Products(spd(3), torch.ones(3)), TypeError, "gradient: expected a callable"),
        (lambda: infer(torch.eye(3, dtype=torch.int64), 2), TypeError, "floating-point"),
        (lambda: Kronecker(left=torch.zeros(0, 0)), ValueError, "left: expected a float"),
        (lambda: Isotropic(mean="3"), TypeError, "mean: expected one number"),
        (lambda: infer(1e25 * spd(4).float(), 3), ValueError, "overflow"),
        (
            lambda: condition(Isotropic(), *2 * (torch.eye(3),)).extend(1e-38 * torch.ones(3), 1e20 * torch.ones(3)),
            ValueError,
            "y of step 3 holds NaN or infinity",
        ),
        (
            lambda: condition(Isotropic(), *2 * (torch.eye(3),)).extend(torch.ones(3, dtype=F64), torch.ones(3)),
            TypeError,
            "s and the directions before it",
        ),
    ],
)
def test_more_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_whole_numbers_of_numpy_count():
    assert condition(CurvatureShaped(0.1), spd(4), spd(4)).eigh(np.int64(2)).values.shape == (2,)
    assert float(Kronecker(left=np.int64(2)).left) == 2.0
    assert math.isclose(Isotropic(torch.tensor(1.5, requires_grad=True)).mean, 1.5)


def test_a_saved_posterior_comes_back_bit_for_bit(tmp_path):
    posterior = condition(Isotropic(1.0, 1.0, 0.1), randn(9, 4).float(), randn(9, 4, seed=1).float())
    posterior.save(tmp_path / "p")
    assert torch.equal(infhess.load(tmp_path / "p").mean.dense(), posterior.mean.dense())
    assert (tmp_path / "p").stat().st_mode & 0o777 == 0o644
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        posterior.save(tmp_path / "folder")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        posterior.save(tmp_path / "absent" / "p")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "p"]
