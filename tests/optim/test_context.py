"""What a controller gets to know: gradients as the step will find them, and a word where something has scaled them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from util import F64, randn


@pytest.mark.parametrize("blocks", ["whole", "layer"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("factor", "said"), [(1.0, False), (99.0, False), (101.0, True)])
def test_gradients_a_hundred_times_those_of_the_loss_are_said_to_be_scaled(factor, said, size, blocks):
    w = nn.Parameter(size * randn(4))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), blocks=blocks)
    loss, x = lambda b: 0.5 * (b @ w).square().mean(), randn(40, 4, seed=1)
    (factor * loss(x)).backward()
    report = opt.observe(loss, x)
    assert any(f"gradients are {factor:.3g} times those of the loss" in note for note in report.notes) is said


def test_without_gradients_the_batchs_own_is_taken():
    rates = []
    for backward in (False, True):
        w = nn.Parameter(randn(4))
        opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), blocks="layer")
        loss, x = lambda b, w=w: 0.5 * (b @ w).square().mean(), randn(40, 4, seed=1)
        if backward:
            loss(x).backward()
        rates.append(opt.observe(loss, x).step)
    assert rates[0] == pytest.approx(rates[1], rel=1e-12)


def test_a_parameter_without_a_gradient_counts_as_zero():
    w, v = nn.Parameter(randn(4)), nn.Parameter(torch.ones(2, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w, v], lr=0.1), blocks="layer")
    loss, x = lambda b: 0.5 * (b @ w).square().mean() + v.square().sum(), randn(40, 4, seed=1)
    w.grad = torch.autograd.grad(loss(x), w)[0]
    report = opt.observe(loss, x)
    h = x.mT @ (x @ w.grad) / 40
    assert opt._state.log_rate == pytest.approx(float((w.grad.norm() / h.norm()).log()))
    assert report.products == 1
