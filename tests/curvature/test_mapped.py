"""Several batches in one pass: the products of one batch after the other, and losses that have to be taken so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess
from infhess.curvature import mapped


def net(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), *more, nn.Linear(6, 3)).double()


def data(points=64):
    g = torch.Generator().manual_seed(1)
    return torch.randn(points, 5, generator=g, dtype=torch.float64), torch.randint(3, (points,), generator=g)


def pairs(x, y):
    return list(zip(x.split(8), y.split(8)))


def source(loss, params, batches=None):
    return infhess.Hessian(loss, params, pairs(*data()) if batches is None else batches)


def of_net(model):
    return lambda b: nn.functional.cross_entropy(model(b[0]), b[1])


def fresh_products(source, vectors, calls=3):
    return [source.fresh_products(vectors, 64, 8) for _ in range(calls)]


def compared(make, monkeypatch, vectors=1, checks=1):
    """A source that may map its loss has the draws of one that may not; its checks are products that count."""
    maps = make()
    S = [torch.randn(maps.size, generator=torch.Generator().manual_seed(i)).to(maps.like) for i in range(vectors)]
    found = fresh_products(maps, S)
    monkeypatch.setattr(mapped, "MOST", 0)
    one_by_one = make()
    expected = fresh_products(one_by_one, S)
    assert maps.products == one_by_one.products + checks
    assert maps.product_points == one_by_one.product_points + checks * 8
    assert maps.data_points == one_by_one.data_points
    for a, b in zip(found, expected):
        torch.testing.assert_close(a.products, b.products, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a.weights, b.weights)
    return maps


@pytest.mark.parametrize("vectors", [1, 3])
def test_one_pass_gives_the_products_of_each_batch(monkeypatch, vectors):
    model, calls = net(), []

    def loss(b):
        calls.append(len(b[0]))
        return of_net(model)(b)

    assert compared(lambda: source(loss, model.parameters()), monkeypatch, vectors).mapped.possible
    # the first batch, another on its own, three passes; then 3 × 8 batches in turn
    assert len(calls) == 2 + 3 + 3 * 8


def test_parameters_without_a_module_and_batches_in_a_dict(monkeypatch):
    w = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    frozen = torch.ones(2, dtype=torch.float64)
    c = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    batches = [{"x": x, "y": y} for x, y in pairs(*data())]

    def loss(b):
        both = torch.cat([w, c[None]])
        return nn.functional.cross_entropy(torch.addmm(input=both[-1], mat1=b["x"], mat2=both[:-1]) ** 2, b["y"])

    assert compared(lambda: source(loss, [w, frozen, c], batches), monkeypatch).mapped.possible


def test_a_loss_that_keeps_tensors_keeps_ones_that_can_be_read(monkeypatch):
    model, kept = net(), []

    def loss(b):
        kept.append(of_net(model)(b))
        return kept[-1]

    assert not compared(lambda: source(loss, model.parameters()), monkeypatch).mapped.possible
    assert all(float(value.detach()) > 0 for value in kept)


def test_a_hook_that_keeps_activations_keeps_ones_that_can_be_read(monkeypatch):
    model, kept = net(), {}
    model[1].register_forward_hook(lambda module, args, out: kept.update(out=out.detach()))
    assert not compared(lambda: source(of_net(model), model.parameters()), monkeypatch).mapped.possible
    assert kept["out"].sum().item() != 0


@pytest.mark.parametrize(
    "reads", [lambda value: value if value.item() > 0 else -value, lambda v: v * float(v.detach())]
)
def test_a_loss_that_reads_numbers_is_taken_batch_by_batch(monkeypatch, reads):
    model = net()
    made = compared(lambda: source(lambda b: reads(of_net(model)(b)), model.parameters()), monkeypatch)
    assert not made.mapped.possible


def test_a_loss_that_draws_its_own_data_is_taken_batch_by_batch():
    model, g = net(), torch.Generator().manual_seed(3)
    x, y = data(1024)

    def loss(_):
        some = torch.randint(1024, (8,), generator=g)
        return of_net(model)((x[some], y[some]))

    made = source(loss, model.parameters())
    for draw in fresh_products(made, [torch.ones(made.size, dtype=torch.float64)]):
        assert draw.products[:, 0].std(0).max() > 1e-3  # chunks differ
    assert not made.mapped.possible


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(6)])
def test_random_losses_and_batch_statistics_are_taken_batch_by_batch(monkeypatch, layer):
    model = net(layer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = compared(lambda: source(of_net(model), model.parameters()), monkeypatch, checks=0)
    assert made.mapped._left == 0  # not tried once
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_batches_of_several_sizes_are_taken_batch_by_batch(monkeypatch):
    model, (x, y) = net(), data(68)
    batches = list(zip(x.split([8, 9] * 4), y.split([8, 9] * 4)))
    made = compared(lambda: source(of_net(model), model.parameters(), batches), monkeypatch, checks=0)
    assert made.mapped._left == 0


def test_products_of_a_pass_that_is_not_used_count(monkeypatch):
    model = net()
    monkeypatch.setattr(mapped, "_agree", lambda y, alone: False)
    # the first batch is no part of the pass: 7 others are, and one of them is multiplied on its own before
    made = compared(lambda: source(of_net(model), model.parameters()), monkeypatch, checks=1 + 7)
    assert not made.mapped.possible


def test_a_loss_that_is_not_finite_is_an_error_in_one_pass_too():
    model, (x, y) = net(), data(192)
    x[150] = float("nan")
    made = source(of_net(model), model.parameters(), pairs(x, y))
    with pytest.raises(ValueError, match="expected a finite number"):
        fresh_products(made, [torch.ones(made.size, dtype=torch.float64)])


def test_large_nets_and_large_outputs_are_taken_batch_by_batch(monkeypatch):
    model = net()
    monkeypatch.setattr(mapped, "OUTPUTS", 100)
    made = source(of_net(model), model.parameters())
    fresh_products(made, [torch.ones(made.size, dtype=torch.float64)])
    assert not made.mapped.possible
    monkeypatch.setattr(mapped, "MOST", made.size - 1)
    assert not source(of_net(model), model.parameters()).mapped.possible
