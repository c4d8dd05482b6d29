"""Algorithm 1: kinship with Krylov methods, counts, sources of every kind, and defined ends."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse.linalg
import torch

import infhess
from infhess import (
    CurvatureShaped,
    Isotropic,
    Products,
    infer,
    infer_steps,
    paper_preconditioner,
)
from util import F64, close, randn, spd, spectrum

N = 20
B = spectrum(torch.logspace(0, 1.5, N))
G = randn(N, seed=7)


def exact(matrix=B, gradient=G):
    return Products(lambda s: matrix @ s, lambda: gradient.clone(), len(gradient))


def krylov(A, b, k):
    columns = [b / b.norm()]
    for _ in range(k - 1):
        columns.append(A @ columns[-1] / (A @ columns[-1]).norm())
    return torch.linalg.qr(torch.stack(columns, 1)).Q


def cg_residuals(A, b, k):
    """Residuals of conjugate gradients on Ax = b from x = 0, by the textbook."""
    r, p, residuals = b.clone(), b.clone(), [b.clone()]
    for _ in range(k - 1):
        alpha = (r @ r) / (p @ A @ p)
        new = r - alpha * A @ p
        p, r = new + (new @ new) / (r @ r) * p, new
        residuals.append(r.clone())
    return torch.stack(residuals, 1)


def minres_residuals(A, b, k):
    """b − A x with x the least-squares solution over the Krylov space of dimension j, for j = 0 … k−1."""
    out = [b]
    for j in range(1, k):
        K = krylov(A, b, j)
        x = torch.linalg.lstsq(A @ K, b[:, None]).solution
        out.append(b - (A @ K @ x)[:, 0])
    return torch.stack(out, 1)


def directions(**options):
    return torch.stack([s.direction.clone() for s in infer_steps(exact(), **options)], 1)


def cosines(A, C):
    return ((A / A.norm(dim=0)) * (C / C.norm(dim=0))).sum(0).abs()


@pytest.mark.parametrize("b0", [1e-3, 1.0, 30.0])
def test_directions_span_the_krylov_space_for_any_b0(b0):
    S = directions(steps=6, method="paper", prior=Isotropic(b0, 1.0, 0.0))
    Q, K = torch.linalg.qr(S).Q, krylov(B, G, 6)
    close(torch.linalg.svdvals(Q.mT @ K), torch.ones(6), atol=1e-5)


def test_as_b0_vanishes_they_are_the_residuals_of_conjugate_gradients():
    S = directions(steps=6, method="paper", prior=Isotropic(1e-7, 1.0, 0.0))
    assert float(cosines(S, cg_residuals(B, G, 6)).min()) > 0.9999


def test_the_default_directions_are_the_residuals_of_the_minimal_residual_method():
    S = directions(steps=6)
    assert float(cosines(S, minres_residuals(B, G, 6)).min()) > 1 - 1e-8
    conjugate = S.mT @ B @ S
    close(conjugate - torch.diag(conjugate.diagonal()), torch.zeros(6, 6), atol=1e-9)


def test_it_counts_and_states_come_one_at_a_time():
    source = exact()
    states = list(infer_steps(source, 5))
    assert [s.step for s in states] == list(range(5))
    assert [s.products for s in states] == [1, 2, 3, 4, 5]
    assert [len(s.posterior) for s in states] == [1, 2, 3, 4, 5]
    assert source.products == 5
    paper = exact()
    infer(paper, 5, method="paper")
    assert paper.products == 4 + 5
    counted = Products(lambda s: B @ s, lambda: G.clone(), N, points=32)
    infer(counted, 3)
    assert counted.data_points == 6 * 32


def test_earlier_states_stay_as_they_were():
    states = list(infer_steps(exact(), 6, method="paper"))
    close(states[2].posterior.mean @ states[1].direction, states[1].product, 1e-6)
    assert len(states[2].posterior) == 3


OPERATORS = {
    "tensor": B,
    "numpy": B.numpy(),
    "scipy": scipy.sparse.linalg.aslinearoperator(B.numpy()),
    "lowrank": infhess.LowRank(1.0, randn(N, 2)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_anything_with_matmul_is_a_source(name):
    operator = OPERATORS[name]
    posterior = infer(Products(operator, generator=torch.Generator().manual_seed(0)), N)
    truth = operator @ np.eye(N) if name in ("numpy", "scipy") else operator @ torch.eye(N, dtype=F64)
    close(posterior.eigh(3).values, torch.linalg.eigvalsh(torch.as_tensor(truth)).flip(0)[:3], 1e-2)
    assert infer(operator, 2).shape == (N, N)


def test_numpy_callables_get_numpy():
    seen = []

    def matvec(s):
        seen.append(type(s))
        return B.numpy() @ s

    infer(Products(matvec, lambda: G.numpy(), N), 3)
    assert seen == [np.ndarray] * 3


def test_float32_and_the_dtype_of_the_gradient():
    source = Products(lambda s: B.float() @ s, lambda: G.float(), N)
    assert infer(source, 4).mean.dtype == torch.float32


def test_it_ends_early_where_the_gradient_holds_nothing_new():
    low = spectrum([3.0, 2.0, 1.0] + [0.0] * (N - 3))
    g = low @ randn(N, seed=2)
    states = list(infer_steps(exact(low, g), 10))
    assert len(states) == 3
    close(states[-1].posterior.mean.dense(), low, 1e-6)


def test_the_papers_method_ends_where_the_krylov_space_is_exhausted():
    eye = torch.eye(5, dtype=F64)
    for prior in (None, Isotropic(1.0)):
        posterior = infer(Products(lambda s: 2 * s, lambda: eye[0].clone(), 5), 4, method="paper", prior=prior)
        close(posterior.mean @ eye[0], 2 * eye[0], 1e-9)


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


def test_infer_of_a_matrix_takes_a_generator():
    A = spd(9)
    first, again = (infer(A, 3, generator=torch.Generator().manual_seed(4)).mean.dense() for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: infer(exact(), 0), ValueError, "steps: expected 1 or more"),
        (lambda: infer(exact(), 2.5), TypeError, "steps: expected a whole number"),
        (lambda: infer(exact(), method="best"), ValueError, "method: expected one of"),
        (lambda: infer(exact(), method="paper", prior=CurvatureShaped()), TypeError, "takes Isotropic"),
        (lambda: infer("matrix"), TypeError, "source: expected a source"),
        (lambda: infer(torch.ones(3, 4)), ValueError, "square matrix"),
        (lambda: infer(spd(3), 2, prior="x"), TypeError, "prior: expected Isotropic"),
        (lambda: infer(spd(3), 2, prior=Isotropic), TypeError, "prior: expected Isotropic"),
        (lambda: infer(spd(3), 2, method="paper", prior=Isotropic()), TypeError, "mean other than 0"),
        (lambda: infer(torch.eye(3, dtype=torch.int64), 2), TypeError, "floating-point"),
        (lambda: infer(1e25 * spd(4).float(), 3), ValueError, "overflow"),
        (lambda: infer(exact(gradient=0 * G)), ValueError, "first gradient is zero"),
        (lambda: infer(exact(gradient=0 * G), method="paper"), ValueError, "pilot: expected finite gradients"),
        (
            lambda: infer(Products(lambda s: s[:3], lambda: G, N)),
            ValueError,
            r"matvec: expected a vector of shape \(20,\)",
        ),
        (lambda: infer(Products(lambda s: s * float("nan"), lambda: G, N)), ValueError, "y of step 0"),
        (lambda: infer(Products(lambda s: B @ s, lambda: G[:2], N)), ValueError, "gradient: expected"),
        (lambda: infer(Products(lambda s: "y", lambda: G, N)), TypeError, "matvec: expected a tensor"),
        (lambda: paper_preconditioner(infer(exact(), 3, method="paper"), 2, beta=-1.0), ValueError, "beta"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_gradient_of_nan_is_named():
    with pytest.raises(ValueError, match="NaN"):
        infer(Products(lambda s: B @ s, lambda: G * float("nan"), N))
