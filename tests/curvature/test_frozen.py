"""A fixed sample of data: its matrix, a matrix like its error, and graphs that are kept as memory allows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from infhess import Hessian, Products
from infhess.curvature.frozen import frozen, whole
from infhess.curvature.graphs import Graphs
from util import F64, close, randn


def least_squares(n=400, batch=20, d=6):
    """Batches of rows, a source of XᵀX/n in a random order, and the exact matrix."""
    X = randn(n, d) * torch.linspace(2, 0.5, d, dtype=F64)
    w = torch.zeros(d, dtype=F64, requires_grad=True)
    return Hessian(lambda b: (b @ w).square().mean() / 2, [w], list(X.split(batch))), X.mT @ X / n


def test_all_of_the_data_is_the_exact_matrix_and_has_no_error():
    source, H = least_squares()
    sample, S = frozen(source, 1000), randn(6, 3)
    Y, A, B = sample.apply(S, S, S)
    close(Y, H @ S, 1e-10)
    assert sample.exact
    assert sample.points == 400
    close((A + B) / 2, H @ S, 1e-10)  # the halves are those of all the data
    close(sample.scaled(A - B), torch.zeros(6, 3), atol=1e-12)


def test_products_with_a_sample_repeat_and_read_nothing():
    source, _ = least_squares()
    sample, S = frozen(source, 80), randn(6, 2)
    first, read = sample.apply(S), source.data_points
    again = sample.apply(S)
    assert torch.equal(first[0], again[0])
    assert (sample.points, read, source.data_points) == (80, 80, 80)
    assert not sample.exact


def test_the_scaled_difference_of_the_halves_is_distributed_as_the_error():
    errors, likes = [], []
    for seed in range(150):
        X = randn(120, 3, seed=seed)
        w = torch.zeros(3, dtype=F64, requires_grad=True)
        source = Hessian(lambda b, w=w: (b @ w).square().mean() / 2, [w], list(X.split(10)))
        sample, eye = frozen(source, 80), torch.eye(3, dtype=F64)
        H_M, H_A, H_B = sample.apply(eye, eye, eye)
        close((H_A + H_B) / 2, H_M, 1e-10)
        errors.append(H_M - X.mT @ X / 120)
        likes.append(sample.scaled(H_A - H_B))
    size, like = (torch.stack(m).square().mean(0).sqrt() for m in (errors, likes))
    close(like, size, 0.25)


@pytest.mark.parametrize(("memory", "kept"), [(0, 0), (10**9, 4)])
def test_few_graphs_or_many_give_the_same_products(memory, kept):
    source, _ = least_squares()
    batches, s = [source.draw() for _ in range(4)], randn(6)
    held = Graphs(source, batches, memory)
    for _ in range(2):
        for (local, share), batch in zip(held, batches):
            assert share == 0.25
            close(local.product(s), source.at(batch, 0).product(s))
    assert sum(a is b for (a, _), (b, _) in zip(held, held)) == kept


def test_all_of_the_data_held_gives_exact_products_and_is_read_once():
    source, H = least_squares()
    held, s = whole(source, 400), randn(6)
    close(held.product(s), H @ s, 1e-10)
    close(held.product(2 * s), 2 * H @ s, 1e-10)
    assert (held.points, source.data_points) == (400, 400)


def test_all_of_the_data_is_not_held_where_that_is_not_exact_or_too_much():
    source, _ = least_squares()
    assert whole(source, 399) is None
    assert whole(source, 400, memory=1000) is None
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    source = Hessian(lambda b: model(b).square().mean(), model.parameters(), list(randn(40, 3).split(10)))
    assert whole(source, 40) is None
    assert whole(Products(torch.eye(3)), 40) is None


def test_dropout_keeps_its_masks_and_its_noise():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    source = Hessian(lambda b: model(b).square().mean(), model.parameters(), list(randn(40, 3).split(10)))
    sample, s = frozen(source, 40), randn(source.size, 1)
    assert torch.equal(sample.apply(s)[0], sample.apply(s)[0])
    assert not sample.exact
    _, A, B = sample.apply(s, s, s)
    assert float(sample.scaled(A - B).norm()) > 0


def test_products_must_repeat():
    g = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match="expected products that repeat"):
        frozen(Products(lambda s: s + torch.randn(4, generator=g, dtype=F64), None, 4), 1)
