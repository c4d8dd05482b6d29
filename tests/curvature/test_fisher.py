"""Fisher matrices against sums of outer products of single gradients, and against the Gauss–Newton matrix."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from infhess import Fisher, GaussNewton, spectrum
from util import F64, close, randn

LOSSES = {
    "classes": (nn.CrossEntropyLoss(), lambda: torch.arange(12) % 3),
    "function": (nn.functional.cross_entropy, lambda: torch.arange(12) % 3),
    "squares": (nn.MSELoss(), lambda: randn(12, 3, seed=4)),
    "coins": (nn.BCEWithLogitsLoss(), lambda: (randn(12, 3, seed=5) > 0).double()),
}


def case(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    loss, targets = LOSSES[name]
    return model, loss, (randn(12, 4), targets())


def dense(source, batch, seed=0):
    return source.at(batch, seed).block(torch.eye(source.size, dtype=F64))


@pytest.mark.parametrize("name", LOSSES)
def test_the_empirical_fisher_is_the_mean_of_outer_products(name):
    model, loss, (x, y) = case(name)
    expected = 0.0
    for i in range(len(x)):
        gradients = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        g = torch.cat([v.reshape(-1) for v in gradients])
        expected = expected + g[:, None] * g / len(x)
    source = Fisher(model, loss, model.named_parameters(), [(x, y)])
    close(dense(source, (x, y)), expected, 1e-10)
    total = torch.autograd.grad(loss(model(x), y), list(model.parameters()))
    close(source.gradient(), torch.cat([v.reshape(-1) for v in total]), 1e-10)


@pytest.mark.parametrize("name", LOSSES)
def test_the_mean_over_drawn_targets_is_the_gauss_newton_matrix(name):
    model, loss, batch = case(name)
    source, S = Fisher(model, loss, model.parameters(), [batch], kind="mc"), randn(27, 2)
    expected = dense(GaussNewton(model, loss, model.parameters(), [batch]), batch) @ S
    draws = torch.stack([source.at(batch, seed).block(S) for seed in range(400)])
    error = draws.mean(0) - expected
    assert float((error.abs() / (draws.std(0) / 20 + 1e-12)).max()) < 5
    assert float(error.norm()) < 0.2 * float(expected.norm())


def test_outputs_with_further_dimensions_and_without_any():
    model, y = nn.Conv1d(2, 3, 1).double(), torch.arange(20).reshape(4, 5) % 3
    batch = randn(4, 2, 5), y
    loss = nn.CrossEntropyLoss()
    expected = dense(GaussNewton(model, loss, model.parameters(), [batch]), batch)
    source = Fisher(model, loss, model.parameters(), [batch], "mc")
    close(torch.stack([dense(source, batch, s) for s in range(200)]).mean(0), expected, 0.4)
    flat = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double()
    one = Fisher(flat, nn.MSELoss(), flat.parameters(), [(randn(6, 2), randn(6))])
    assert float(dense(one, (randn(6, 2), randn(6))).diagonal().min()) >= 0


def test_drawn_targets_are_noise_even_where_all_data_is_read():
    model, loss, batch = case("classes")
    batches = list(zip(*(t.split(3) for t in batch)))
    assert float(spectrum(Fisher(model, loss, model.parameters(), batches, "mc"), 2).std.min()) > 0
    assert float(spectrum(Fisher(model, loss, model.parameters(), batches), 2).std.max()) == 0


def test_dicts_and_other_batches_and_other_draws():
    model, loss, (x, y) = case("classes")
    s = randn(27)
    expected = Fisher(model, loss, model.parameters(), [(x, y)]).matvec(s)
    named = {"input": x, "labels": y}
    close(Fisher(model, loss, model.parameters(), [named]).matvec(s), expected)
    close(Fisher(model, loss, model.parameters(), [[x, x, y]], pair=lambda b: (b[0], b[2])).matvec(s), expected)
    drawn = Fisher(model, lambda f, t: loss(f, t), model.parameters(), [(x, y)], "mc", sample=lambda f: y)
    close(drawn.matvec(s), expected)
    close(drawn.fresh([(x, y)]).matvec(s), expected)


def test_bad_input():
    model, loss, batch = case("classes")
    for options, error, message in (
        ({"kind": "exact"}, ValueError, "kind: expected"),
        ({"sample": 3, "kind": "mc"}, TypeError, "sample: expected a callable sample"),
        ({"sample": len}, TypeError, "sample: expected a function"),
    ):
        with pytest.raises(error, match=message):
            Fisher(model, loss, model.parameters(), [batch], **options)
    with pytest.raises(ValueError, match='for kind="mc" and the loss'):
        Fisher(model, lambda f, t: loss(f, t), model.parameters(), [batch], "mc")
    with pytest.raises(TypeError, match=r"Fisher\(model, loss, params, batches\)"):
        Fisher(None, loss, model.parameters(), [batch])
