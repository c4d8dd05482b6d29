"""Matrices of other packages as sources: curvlinops, linear_operator, SciPy, and functions v ↦ Av."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator
from linear_operator.operators import DiagLinearOperator
from scipy.sparse.linalg import aslinearoperator
from torch import nn

from infhess import CurvatureShaped, GaussNewton, Hessian, Products, condition, infer, spectrum, trace
from util import F64, close, randn
from util import spectrum as matrix_with


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


@pytest.mark.parametrize(("theirs", "kind"), [(HessianLinearOperator, "hessian"), (GGNLinearOperator, "gauss-newton")])
def test_curvlinops_and_ours_agree(theirs, kind):
    model, loss, data = net(), nn.MSELoss(), [(randn(40, 6), randn(40, 3, seed=1))]
    params = list(model.parameters())
    operator = theirs(model, loss, params, data)
    ours = (
        Hessian(lambda b: loss(model(b[0]), b[1]), params, data)
        if kind == "hessian"
        else GaussNewton(model, loss, params, data)
    )
    v = randn(ours.size, seed=2)
    close(Products(operator).matvec(v), ours.matvec(v), 1e-9)
    close(spectrum(operator, 3).values, spectrum(ours, 3).values, 5e-3)


def test_curvlinops_in_training_dtype():
    model = net().float()
    data = [(randn(40, 6, dtype=torch.float32), randn(40, 3, seed=1, dtype=torch.float32))]
    found = spectrum(HessianLinearOperator(model, nn.MSELoss(), list(model.parameters()), data), 1)
    assert found.values.dtype == torch.float32


A = matrix_with(torch.linspace(9, 1, 30))
FOREIGN = {
    "SciPy operator": aslinearoperator(A.numpy()),
    "SciPy sparse": scipy.sparse.csr_array(A.numpy()),
    "NumPy": A.numpy(),
    "function of tensors": Products(lambda v: A @ v, size=30),
    "function of arrays": Products(lambda v: np.asarray(A) @ np.asarray(v), size=30),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_everything_with_a_product_is_a_source(name):
    source = FOREIGN[name]
    close(spectrum(source, 2).values, torch.tensor([9.0, 9 - 8 / 29]), 5e-3)
    assert infer(source, 5).eigh(1).values.shape == (1,)
    low, high = trace(source).interval(0.999)
    assert low <= float(A.trace()) <= high


def test_gpytorch_operators():
    values = torch.linspace(9, 1, 30, dtype=F64)
    close(spectrum(DiagLinearOperator(values), 2).values, values[:2], 5e-3)


def test_a_function_alone_does_not_tell_its_size():
    with pytest.raises(TypeError, match="size: expected the number of rows N"):
        Products(lambda v: v)
    with pytest.raises(TypeError, match=r"a function v -> Av: Products\(function, size=N\)"):
        spectrum(lambda v: v)


def test_matfree_style_callables_and_back():
    jax = pytest.importorskip("jax")
    decomp, eig = pytest.importorskip("matfree.decomp"), pytest.importorskip("matfree.eig")
    theirs = jax.numpy.asarray(A.float().numpy())
    product = lambda v: theirs @ v  # noqa: E731
    found = spectrum(Products(product, size=30), 2)
    close(found.values, torch.tensor([9.0, 9 - 8 / 29]), 5e-3)
    posterior = condition(CurvatureShaped(), torch.eye(30, dtype=F64), A)
    ours = posterior.mean.to_scipy()
    back = lambda v: jax.pure_callback(ours.matvec, jax.ShapeDtypeStruct((30,), v.dtype), v)  # noqa: E731
    values, _ = eig.eigh_partial(decomp.tridiag_sym(20))(back, jax.numpy.ones(30) + jax.numpy.arange(30) / 7)
    assert float(values.max()) == pytest.approx(9.0, rel=5e-3)
