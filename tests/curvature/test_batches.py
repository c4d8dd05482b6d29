"""Batches of every kind, endless and one-shot, joined and cut."""

from __future__ import annotations

import collections
import itertools

import pytest
import torch
from torch.utils.data import DataLoader

import infhess
from infhess import Hessian, density, infer, largest, spectrum
from small_data import loader, problem, replaced
from util import F64, close, randn


def test_batches_of_every_kind():
    w = torch.zeros(2, dtype=F64, requires_grad=True)
    x = randn(6, 2)
    for batch, pick in (
        (x, lambda b: b),
        ((x, x), lambda b: b[1]),
        ([x, {"a": x}], lambda b: b[1]["a"]),
        ({"in": {"deep": x}}, lambda b: b["in"]["deep"]),
    ):
        source = Hessian(lambda b, pick=pick: (pick(b) @ w).square().mean(), [w], [batch])
        draw = source.fresh_products([torch.ones(2, dtype=F64)], 6, 4)
        assert draw.products.shape == (4, 1, 2)
        close(draw.weights @ draw.products[:, 0], 2 * x.mT @ (x @ torch.ones(2, dtype=F64)) / 6, 1e-12)
        assert source.data_points == 6


def test_endless_one_shot_and_repeated_iterables():
    w = torch.ones(2, dtype=F64, requires_grad=True)
    loss = lambda x: (x @ w).square().mean()  # noqa: E731
    x = randn(4, 2)
    assert infer(Hessian(loss, [w], itertools.repeat(x)), 1).shape == (2, 2)
    again = Hessian(loss, [w], [x])
    for _ in range(3):
        again.gradient()
    dry = Hessian(loss, [w], iter([x]))
    dry.gradient()
    with pytest.raises(ValueError, match="run dry"):
        dry.gradient()
    for estimate in (largest, density, lambda s: spectrum(s, k=1), lambda s: spectrum(s, k=1, by="layer")):
        with pytest.raises(ValueError, match="expected at least one batch"):
            estimate(Hessian(loss, {"w": w}, []))
    with pytest.raises(ValueError, match="expected at least one batch"):
        spectrum(again, k=1).along([])
    reader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=2)
    loader = Hessian(lambda b: loss(b[0]), [w], reader)
    assert loader.stream.population == 4
    loader.matvec(torch.ones(2))


def test_what_is_not_known_to_come_once_a_pass_has_no_population():
    _, _, data, _ = problem(96)
    assert infhess.curvature.batches.population(loader(data, 16)) == 96
    assert infhess.curvature.batches.population(replaced(data, 16)) is None
    assert infhess.curvature.batches.population(DataLoader([data] * 5, batch_size=None)) is None
    assert infhess.curvature.batches.population([data, data]) == 192


def test_mappings_and_lists_of_one_thing_a_point():
    loss, w, (X, y), _ = problem(32)
    lengths = []

    def watched(b):
        lengths.append((len(b["x"]), len(b["names"])))
        return loss((b["x"], b["y"]))

    for kind in (dict, collections.UserDict, lambda d: collections.defaultdict(list, d)):
        batch = kind({"x": X, "y": y, "names": [str(i) for i in range(32)], "note": "whole"})
        found = spectrum(Hessian(watched, [w], [batch, batch]), 2, points=32)
        assert found.values.shape == (2,)
    assert all(a == b for a, b in lengths)
    assert min(lengths) < (32, 32)


def test_padded_batches_that_cannot_be_joined_name_the_remedy():
    w = torch.ones(6, dtype=F64, requires_grad=True)
    batches = [randn(16, t, 6, seed=t) for t in (3, 5, 4, 7)]
    loss = lambda b: torch.tanh(b @ w).square().mean()  # noqa: E731
    with pytest.raises(ValueError, match="split=False"):
        spectrum(Hessian(loss, [w], batches), 2)
    assert spectrum(Hessian(loss, [w], batches, split=False), 2).values.shape == (2,)
