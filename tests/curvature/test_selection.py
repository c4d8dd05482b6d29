"""Parameters by pattern, and layers by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from infhess import Fisher, GaussNewton, Hessian, select
from infhess.curvature.selection import Layer, layers_of
from util import F64, close, randn


def net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def source(params, model):
    return Hessian(lambda b: model(b).square().mean(), params, list(randn(24, 3).split(8)))


def test_patterns_and_modules_select_in_the_order_of_the_model():
    model = nn.ModuleDict({"blocks": nn.ModuleList([nn.ModuleDict({"attn": nn.Linear(2, 2)}) for _ in range(2)])})
    assert list(select(model, "blocks.*.attn.weight")) == ["blocks.0.attn.weight", "blocks.1.attn.weight"]
    assert list(select(model, "*.1.*", "blocks.0")) == [
        f"blocks.{i}.attn.{n}" for i in (0, 1) for n in ("weight", "bias")
    ]
    assert select(model, "*.bias")["blocks.1.attn.bias"] is model["blocks"][1]["attn"].bias


def test_what_matches_nothing_names_what_is_near():
    with pytest.raises(ValueError, match=r"nothing matches '2.weigth'; near it are 2.weight"):
        select(net(), "2.weigth")
    for bad in ((), (3,)):
        with pytest.raises(TypeError, match="patterns: expected names"):
            select(net(), *bad)
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module"):
        select([], "a")


def test_names_come_from_dicts_and_pairs_and_stay():
    model = net()
    named = dict(model.named_parameters())
    for params in (named, model.named_parameters(), select(model, "*")):
        found = source(params, model)
        assert found.flat.names == list(named)
        assert found.fresh([randn(4, 3)]).flat.names == list(named)
        s = randn(found.size)
        close(found.matvec(s), source(model.parameters(), model).matvec(s))
    assert list(layers_of(found)) == ["0", "2"]
    with pytest.raises(ValueError, match=r"pass model.named_parameters\(\)"):
        layers_of(source(model.parameters(), model))


def test_a_layer_is_a_block_of_the_whole_matrix():
    model = net()
    whole = source(model.named_parameters(), model)
    batch = whole.draw()
    H = whole.local(batch).block(torch.eye(whole.size, dtype=F64))
    for ranges in ([(16, 26)], [(0, 12), (16, 24)]):
        index = torch.cat([torch.arange(a, b) for a, b in ranges])
        block, s = Layer(whole.fresh([batch]), ranges), randn(len(index))
        close(block.matvec(s), H[index][:, index] @ s)
        draw = block.fresh_products([s, 2 * s], 8, 4)
        close((draw.weights[:, None, None] * draw.products).sum(0)[1], 2 * H[index][:, index] @ s)
        forms = block.fresh_products([s], 8, 4, forms=True)
        close((forms.weights * forms.products[:, 0, 0]).sum(), s @ H[index][:, index] @ s)
        assert block.gradient().shape == s.shape
        assert (block.products, block.data_points) == (block.whole.products, block.whole.data_points)


@pytest.mark.parametrize("kind", [GaussNewton, Fisher])
def test_patterns_in_the_place_of_parameters(kind):
    model, data = net(), [(randn(8, 3), randn(8, 2, seed=1))]
    for patterns, chosen in (("0", ["0"]), (["*.weight"], ["*.weight"]), (("0.bias", "2"), ["0.bias", "2"])):
        by_name = kind(model, nn.MSELoss(), patterns, data)
        by_hand = kind(model, nn.MSELoss(), select(model, *chosen), data)
        assert by_name.flat.names == by_hand.flat.names
        s = randn(by_hand.size, seed=2)
        close(by_name.matvec(s), by_hand.matvec(s))
    with pytest.raises(ValueError, match="nothing matches 'blocks"):
        kind(model, nn.MSELoss(), "blocks.*", data)


def test_a_loss_alone_has_no_names_to_match():
    with pytest.raises(TypeError, match=r"got names; pass infhess.select\(model, pattern\)"):
        source("0.*", net())
