"""Symmetric: means and samples are symmetric, and samples have the dense covariance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dense
from infhess import Symmetric, condition
from posterior_cases import B0, L0, W0, N, data, m
from util import F64, close, fast_and_long, randn, spd


def test_exact_products_of_no_symmetric_matrix_are_an_error():
    _, S, Y = data(symmetric=False, rows=N, noise=0.0)
    with pytest.raises(ValueError, match="not symmetric"):
        condition(Symmetric(B0, W0), S, Y + randn(N, m, seed=8)).mean  # noqa: B018


def test_a_symmetric_prior_has_a_symmetric_posterior():
    _, S, Y = data()
    mean = condition(Symmetric(B0, W0, L0), S, Y).mean.dense()
    close(mean, mean.mT, 1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_samples_of_a_symmetric_matrix_are_symmetric(noise, g):
    eye = torch.eye(4, dtype=F64)
    posterior = condition(Symmetric(0.0, 1.0, noise), eye[:, :2], eye[:, :2])
    for _ in range(5):
        draw = posterior.sample(eye, generator=g)
        close(draw, draw.mT, 1e-12)
        if noise == 0:
            close(draw[:2], eye[:2], 1e-12)


@fast_and_long("draws", 1000, 8000)
def test_samples_of_blocks_that_touch_the_directions_have_the_right_covariance(draws, g):
    S = randn(4, 2)
    posterior = condition(Symmetric(0.3, 1.0, 0.4), S, spd(4) @ S)
    reference = dense.symmetric(0.3, 1.0, 0.4, S.numpy(), (spd(4) @ S).numpy())
    for V in (torch.eye(4, dtype=F64), torch.stack([S[:, 0], randn(4, seed=5)], 1), randn(4, 6, seed=6)):
        found = torch.stack([posterior.sample(V, generator=g).flatten() for _ in range(draws)])
        forms = np.kron(np.eye(4), V.numpy().T)
        close(found.mT.cov(), forms @ reference.covariance @ forms.T, 5 * (2 / draws) ** 0.5)
