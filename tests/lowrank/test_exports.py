"""Operators given to curvlinops, linear_operator and SciPy, and taken back: the same matrix."""

from __future__ import annotations

import pytest
import torch
from scipy.sparse.linalg import eigsh

from infhess import Isotropic, Products, condition, spectrum
from infhess.lowrank.operator import Dense
from util import F64, close, randn
from util import spectrum as matrix_with

WAYS = ["to_scipy", "to_curvlinops", "to_linear_operator"]


def mean():
    return condition(Isotropic(1.0, 1.0, 0.1), randn(12, 5), randn(12, 5, seed=1)).mean


@pytest.mark.parametrize("way", WAYS)
def test_a_round_trip_is_the_same_matrix(way):
    operator = mean()
    foreign, v = getattr(operator, way)(), randn(12, seed=3)
    assert tuple(foreign.shape) == (12, 12)
    close(Products(foreign).matvec(v), operator @ v, 1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_the_spectrum_of_what_comes_back(way):
    A = matrix_with(torch.linspace(9, 1, 30))
    found = spectrum(getattr(Dense(A), way)(), 2)
    close(found.values, torch.tensor([9.0, 9 - 8 / 29]), 5e-3)


def test_curvlinops_multiplies_transposes_and_composes():
    operator, V = Dense(randn(7, 4)), randn(4, 3, seed=1)
    foreign = operator.to_curvlinops()
    close(foreign @ V, operator.matrix @ V, 1e-12)
    close(foreign.adjoint() @ randn(7, seed=2), operator.matrix.mT @ randn(7, seed=2), 1e-12)
    close((foreign.adjoint() @ foreign) @ V, operator.matrix.mT @ operator.matrix @ V, 1e-12)
    close((foreign @ [V])[0], operator.matrix @ V, 1e-12)
    assert foreign.dtype == F64


def test_curvlinops_hands_it_on_to_scipy():
    A = matrix_with(torch.linspace(9, 1, 30))
    assert eigsh(Dense(A).to_curvlinops().to_scipy(), 1)[0] == pytest.approx([9.0])


def test_linear_operator_multiplies_solves_and_adds():
    A = matrix_with(torch.linspace(9, 1, 10))
    foreign, V = Dense(A).to_linear_operator(), randn(10, 2)
    close(foreign @ V, A @ V, 1e-12)
    close(foreign.mT @ V, A @ V, 1e-12)
    close(foreign.to_dense(), A, 1e-12)
    close(foreign.add_diagonal(torch.ones(10, dtype=F64)) @ V, A @ V + V, 1e-10)
    close((foreign * 2.0) @ V, 2 * A @ V, 1e-12)
    assert foreign.dtype == F64
