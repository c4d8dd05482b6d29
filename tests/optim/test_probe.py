"""A curvature probe: ½ log(gᵀDg/hᵀDh) of dense matrices, and what a gradient was multiplied by on its way."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import infhess
from infhess.optim.rate.probe import MicroBatch, Probe, dot, inner_products
from util import F64, randn, spd

A, D = spd(6), 0.5 + randn(6, seed=1).abs()
W, LINEAR = randn(6, seed=2), randn(6, seed=3)
OWN = A @ W + LINEAR


def probe(scale=1.0, micro_batches=1):
    """Of ½ wᵀAw + bᵀw, in two parameters."""
    w, v = nn.Parameter(W[:2].clone()), nn.Parameter(W[2:].clone())

    def loss(batch):
        x = torch.cat([w, v])
        return scale * (0.5 * x @ A @ x + LINEAR @ x) * batch.mean()

    batch = torch.ones(2, dtype=F64)
    return Probe([MicroBatch(infhess.Hessian(loss, [w, v], [batch]), batch)], micro_batches)


def parts(g):
    return [g[:2], g[2:]]


def scaled(i, x):
    return parts(D)[i] * x


def expected(g, factor):
    h = factor * A @ (D * g)
    return 0.5 * math.log(float(g @ (D * g)) / float(h @ (D * h)))


def test_it_reads_the_lengths_and_the_ratio_of_the_definition():
    found = probe().read(parts(OWN), scaled)
    assert found.gradient == pytest.approx(float(OWN.norm()))
    assert found.direction == pytest.approx(float((D * OWN).norm()))
    assert found.log_ratio == pytest.approx(expected(OWN, 1.0))


@pytest.mark.parametrize("factor", [0.1, 3.0])
def test_a_gradient_that_was_multiplied_reads_as_that_of_a_loss_that_was(factor):
    clipped = probe().read(parts(factor * OWN), scaled)
    there = probe(factor).read(parts(factor * OWN), scaled)
    assert clipped == pytest.approx(there)
    assert clipped.log_ratio == pytest.approx(expected(factor * OWN, factor))


def test_of_one_batch_the_factor_is_that_of_lengths_and_of_several_that_of_the_common_part():
    g = 2 * OWN + 2 * float(OWN.norm()) * randn(6, seed=4) / 6**0.5
    of_lengths, of_part = float(g.norm() / OWN.norm()), float(g @ g / (g @ OWN))
    assert abs(of_lengths - of_part) > 0.05
    assert probe().read(parts(g), scaled).log_ratio == pytest.approx(expected(g, of_lengths))
    assert probe(micro_batches=8).read(parts(g), scaled).log_ratio == pytest.approx(expected(g, of_part))
    # What points the other way has no common part: lengths again.
    assert probe(micro_batches=8).read(parts(-g), scaled).log_ratio == pytest.approx(expected(g, of_lengths))


def test_where_the_probed_batch_has_no_gradient_the_factor_is_one():
    there = probe(0.0)
    assert there.factor(parts(OWN), parts(0 * OWN)) == 1.0
    assert math.isnan(there.read(parts(OWN), scaled).log_ratio)  # no curvature either


def test_without_a_gradient_nothing_is_read_and_no_product_is_taken():
    there = probe()
    found = there.read(parts(0 * OWN), scaled)
    assert (found.gradient, found.direction, math.isnan(found.log_ratio)) == (0.0, 0.0, True)
    assert there.pieces[0].source.products == 0


def noisy(index):
    """½ wᵀ(A + Eᵢ)w with Eᵢ of one micro-batch, and its Hessian."""
    noise = randn(6, 6, seed=20 + index)
    matrix, w = A + noise + noise.T, nn.Parameter(W.clone())
    batch = torch.ones(2, dtype=F64)
    return (
        matrix,
        (lambda w: MicroBatch(infhess.Hessian(lambda b: 0.5 * w @ matrix @ w * b.mean(), [w], [batch]), batch)),
        w,
    )


@pytest.mark.parametrize("number", [2, 5])
def test_micro_batches_that_are_all_at_hand_read_as_the_one_batch_that_they_are(number):
    w = nn.Parameter(W.clone())
    matrices, pieces, _ = zip(*(noisy(i) for i in range(number)))
    mean = sum(matrices) / number
    found = Probe([make(w) for make in pieces], number).read([mean @ W], lambda i, x: D * x)
    h = mean @ (D * (mean @ W))
    assert found.log_ratio == pytest.approx(0.5 * math.log(float((mean @ W) @ (D * (mean @ W))) / float(h @ (D * h))))


def test_two_of_many_micro_batches_read_what_they_share_and_the_noise_of_all():
    w, k = nn.Parameter(W.clone()), 8
    (a, first, _), (b, second, _) = noisy(0), noisy(1)
    g = (a + b) @ W / 2
    found = Probe([first(w), second(w)], k).read([g], lambda i, x: D * x)
    p = D * g
    shared, square = (a @ p) @ (D * (b @ p)), ((a @ p) @ (D * (a @ p)) + (b @ p) @ (D * (b @ p))) / 2
    across = max(shared + (square - shared) / k, square / k)
    assert found.log_ratio == pytest.approx(0.5 * math.log(float(g @ p) / float(across)))


def test_dot_products_of_many_numbers_are_those_of_double_precision():
    a, b = randn(40_000, seed=5).float(), randn(40_000, seed=6).float()
    assert dot(a.view(200, 200), b.view(200, 200)) == pytest.approx(float(a.double() @ b.double()), rel=1e-12)
    x, y = torch.cat([a, b]).double(), torch.cat([b, b]).double()
    assert inner_products([a, b], [b, b]) == pytest.approx([float(x @ x), float(x @ y), float(y @ y)], rel=1e-12)
    assert inner_products([], []) == (0.0, 0.0, 0.0)
