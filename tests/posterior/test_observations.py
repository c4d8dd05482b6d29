"""Observations: near-repeated and contradictory directions, bad data, and what a failed extend leaves."""

from __future__ import annotations

import pytest
import torch

from infhess import Isotropic, Kronecker, Symmetric, condition
from infhess.posterior import Observations
from infhess.posterior.base import ContradictionError, agree
from posterior_cases import EXACT, N, data, m
from util import F64, close, randn


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


PLAIN = {"isotropic": Isotropic(), "symmetric": Symmetric(), "kronecker": Kronecker()}


@pytest.mark.parametrize("eps", [1e-3, 1e-6, 1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize("prior", PLAIN.values(), ids=PLAIN)
def test_exact_products_along_directions_that_are_nearly_the_same(prior, eps):
    B = torch.diag(torch.linspace(1, 2, 50, dtype=F64))
    s, d = randn(50), randn(50, seed=1)
    S = torch.stack([s, s + eps * d], 1)
    posterior = condition(prior, S, B @ S)
    close(posterior.mean @ S, B @ S, 1e-8)
    assert float(torch.linalg.matrix_norm(posterior.mean.dense(), 2)) < 2.5
    assert float(posterior.variance(s, s)) < 1e-10 * float(s @ s) ** 2


@pytest.mark.parametrize("seed", range(6))
def test_a_repeated_direction_in_float32(seed):
    s, A = randn(100, seed=seed).float(), randn(100, 100, seed=seed + 10).float()
    B = A + A.mT
    S = torch.stack([s, 3.1 * s], 1)
    for prior in PLAIN.values():
        posterior = condition(prior, S, B @ S)
        close((posterior.mean @ s), B @ s, 1e-3)
        assert float(torch.linalg.matrix_norm(posterior.mean.dense(), 2)) < 1.5 * float(torch.linalg.matrix_norm(B, 2))


def test_a_small_contradiction_beside_a_large_product_is_found():
    S = torch.eye(3, dtype=F64)[:, [0, 0, 1]]
    Y = torch.stack(
        [torch.eye(3, dtype=F64)[0], 1.01 * torch.eye(3, dtype=F64)[0], 1e11 * torch.eye(3, dtype=F64)[1]], 1
    )
    for prior in PLAIN.values():
        with pytest.raises(ValueError, match="contradict"):
            condition(prior, S, Y).mean  # noqa: B018


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
    "no numbers": (tuple(t.to("meta") for t in GOOD), ValueError, "meta device, which has none"),
    "words": (("many", GOOD[1]), TypeError, "expected a tensor"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data(case):
    (S, Y), error, message = BAD[case]
    with pytest.raises(error, match=message):
        condition(Symmetric(1.0, 1.0, 0.1), S, Y)


def test_a_failed_extend_leaves_everything_as_it_was():
    posterior = condition(Isotropic(1.0, 1.0, 0.1), *data()[1:])
    before = posterior.mean.dense().clone()
    with pytest.raises(ValueError, match="step 4"):
        posterior.extend(torch.ones(N, dtype=F64), torch.full((N,), float("nan"), dtype=F64))
    close(condition(posterior.prior, posterior.S, posterior.Y).mean.dense(), before, 1e-13)
    assert len(posterior) == m


@pytest.mark.parametrize(
    ("dtype", "size"), [(F64, 1e-160), (F64, 1e160), (torch.float32, 1e-22), (torch.float32, 1e22)]
)
def test_lengths_are_right_where_their_squares_are_not(dtype, size):
    S = (size * randn(5, 3)).to(dtype)
    found = Observations.of(S, S)
    close(found.norms / size, (S.double() / size).norm(dim=0), 1e-6)


def test_observations_begin_with_none_and_are_the_same_one_by_one():
    S, Y = randn(4, 3), randn(6, 3, seed=1)
    found = Observations.empty(6, 4, S, capacity=3)
    assert (len(found), found.shape, found.SS.shape) == (0, (6, 4), (0, 0))
    room = found.buffer
    for s, y in zip(S.mT, Y.mT):
        found = found.extend(s, y)
        assert found.buffer is room  # nothing was copied
    whole = Observations.of(S, Y)
    for name in ("S", "Y", "norms", "SS", "YY"):
        close(getattr(found, name), getattr(whole, name), 1e-12)


@pytest.mark.parametrize(("error", "agrees"), [(0.9, True), (1.1, False)])
def test_exact_products_agree_to_a_hundred_times_their_rounding(error, agrees):
    # Of two equal directions the products differ by δ: |Yn| = δ|y|/√2 against 100 · 8 · 2 eps · 2|y|/√2.
    y, null = randn(5), torch.tensor([[1.0], [-1.0]], dtype=F64) / 2**0.5
    Y = torch.stack([y, y * (1 + error * 3200 * torch.finfo(F64).eps)], 1)
    if agrees:
        agree(Y, null, F64)
    else:
        with pytest.raises(ContradictionError, match="contradict"):
            agree(Y, null, F64)


@pytest.mark.parametrize(("spread", "from_gram"), [(99.0, True), (101.0, False)])
def test_singular_values_that_spread_by_more_than_a_hundred_come_from_the_directions_themselves(spread, from_gram):
    # (1 − ρ) I + ρ 11ᵀ has the eigenvalues 1 − ρ and 1 + 9ρ: unit directions whose Gram matrix it is.
    rho = (spread**2 - 1) / (spread**2 + 9)
    S = torch.linalg.cholesky((1 - rho) * torch.eye(10, dtype=F64) + rho * torch.ones(10, 10, dtype=F64)).mT
    modes = Observations.of(S, S).modes
    assert modes.of_S is from_gram
    close((modes.A @ modes.F * modes.sigma) @ modes.V.mT, S, 1e-9)
