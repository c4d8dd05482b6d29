"""Priors and the arguments of posteriors: what is taken, and what is named as wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import infhess
from infhess import CurvatureShaped, Isotropic, Kronecker, Symmetric, condition
from util import F64, spd

GOOD = (torch.eye(4, 2, dtype=F64), torch.ones(4, 2, dtype=F64))


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
        (lambda: condition(Kronecker(mean=torch.ones(4, 3)), *GOOD), ValueError, "mean: expected"),
        (lambda: condition(Kronecker(right=torch.ones(3)), *GOOD), ValueError, "right: expected 4 rows"),
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


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: condition(Isotropic(), *2 * (torch.eye(3),)).sample(torch.ones(3), generator=3),
            TypeError,
            "torch.Generator",
        ),
        (lambda: Kronecker(left=torch.zeros(0, 0)), ValueError, "left: expected a float"),
        (lambda: Isotropic(mean="3"), TypeError, "mean: expected one number"),
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


def test_a_prior_shows_numbers_and_shapes():
    prior = Kronecker(1.5, torch.ones(3), torch.eye(2), 0.25)
    assert repr(prior) == "Kronecker(mean=1.5, left=3, right=2×2, noise_left=0.25, noise_right=0.25)"
