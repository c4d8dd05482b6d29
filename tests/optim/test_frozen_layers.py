"""Frozen layers, with all parameters given: frozen from the start, frozen later, thawed later; in every loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import infhess
from watch_cases import F64, WAYS, batch, train, weights

BASES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)).to(F64)


def freeze(model, frozen=True):
    for p in model[0].parameters():
        p.requires_grad_(not frozen)
    return model


def loss_of(model):
    return lambda b: F.cross_entropy(model(b[0]), b[1])


def trained(model, opt, way, steps, first=0):
    return train(opt, loss_of(model), (batch("mlp", t) for t in range(first, first + steps)), way)


def layerwise(base, params):
    return infhess.Preconditioned(BASES[base](params), blocks="layer")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", list(BASES))
def test_layers_frozen_from_the_start_count_for_nothing(base, way):
    """The same steps to rounding as with the trained parameters alone, except that |w| counts what trains in both."""
    found = []
    for params in (lambda m: m.parameters(), lambda m: [p for p in m.parameters() if p.requires_grad]):
        model = freeze(net())
        opt = layerwise(base, params(model))
        rates = trained(model, opt, way, 30)
        assert not any("skipped" in note for note in opt.report.notes)
        found.append((rates, weights(model)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-9)
    assert float(found[0][0][-1]) > 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", list(BASES))
def test_layers_frozen_later_and_thawed_again_are_probed_on(base, way):
    model = net()
    opt = layerwise(base, model.parameters())
    seen, first = [], 0
    for frozen in (False, True, False):
        freeze(model, frozen)
        before = model[0].weight.detach().clone()
        opt.zero_grad()  # a gradient left over from before the layer was frozen would move it
        trained(model, opt, way, 100, first)
        first += 100
        assert torch.equal(before, model[0].weight) == frozen
        seen.append(opt._state.steps_at_probe)
        assert not any("skipped" in note for note in opt.report.notes), opt.report.notes
    assert seen[0] < seen[1] < seen[2]  # some eighty steps apart, in each of the three parts


@pytest.mark.parametrize("scaling", ["kronecker", "diagonal"])
@pytest.mark.parametrize("way", WAYS)
def test_rate_free_does_the_same(scaling, way):
    model = freeze(net())
    opt = infhess.RateFree(model.parameters(), scaling=scaling)
    for first, frozen in ((0, True), (100, False), (200, True)):
        before = freeze(model, frozen)[0].weight.detach().clone()
        opt.zero_grad()
        trained(model, opt, way, 100, first)
        assert torch.equal(before, model[0].weight) == frozen
        assert not any("skipped" in note for note in opt.report.notes)
