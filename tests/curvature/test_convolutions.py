"""Convolutions of the training pass: first, second and third derivatives are PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv1d, conv2d, conv3d

from infhess.curvature.convolutions import DIMENSIONS, convolve
from util import randn

CASES = {
    "1d": (conv1d, (2, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    "2d": (conv2d, (2, 4, 7, 6), (6, 4, 3, 2), {"padding": (1, 0)}),
    "2d, groups and dilation": (conv2d, (2, 4, 7, 6), (6, 2, 3, 2), {"groups": 2, "dilation": 2, "stride": (1, 2)}),
    "3d": (conv3d, (2, 2, 4, 5, 4), (3, 2, 2, 2, 3), {}),
}


def ours(func, *args, **kwargs):
    found = convolve(func, args, kwargs)
    assert found is not None
    return found


def chain(apply, func, shape, kernel, options, live):
    """Derivatives of orders one to three of a nonlinear function of a convolution, along fixed vectors."""
    given = [randn(*shape, seed=1), randn(*kernel, seed=2), randn(kernel[0], seed=3)]
    tensors = [t.requires_grad_() if name in live else t for name, t in zip("xwb", given)]
    inputs = [t for t in tensors if t.requires_grad]
    value, found = apply(func, *tensors, **options).tanh().square().sum(), []
    for order in range(3):
        grads = torch.autograd.grad(value, inputs, create_graph=True)
        found += [g.detach() for g in grads]
        value = sum((g * randn(*g.shape, seed=10 * order + i)).sum() for i, g in enumerate(grads))
    return found


@pytest.mark.parametrize("live", ["xwb", "wb", "x", "b", "w"])
@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_those_of_pytorch(case, live):
    func, shape, kernel, options = CASES[case]
    expected = chain(lambda f, *args, **kwargs: f(*args, **kwargs), func, shape, kernel, options, live)
    for a, b in zip(chain(ours, func, shape, kernel, options, live), expected):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_what_pytorch_has_to_see_is_left_to_it():
    x, w = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    given = {
        "a string for padding": lambda: convolve(conv2d, (x, w), {"padding": "same"}),
        "no batch": lambda: convolve(conv2d, (x[0], w), {}),
        "complex numbers": lambda: convolve(conv2d, (x.cfloat(), w.cfloat()), {}),
    }
    for name, call in given.items():
        assert call() is None, name
    with torch.autocast("cpu", torch.bfloat16):
        assert convolve(conv2d, (x, w), {}) is None
    seen = []
    torch.func.vmap(lambda x: seen.append(convolve(conv2d, (x[None], w), {})) or x)(x)
    assert seen == [None]
    assert set(DIMENSIONS) == {conv1d, conv2d, conv3d}
