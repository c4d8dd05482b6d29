"""Nets whose curvature is timed: the truth about them against the dense Hessian of a small one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from infhess_bench.bench import matfree_tools, timed_nets, timed_tools
from infhess_bench.bench.timed_nets import NETS, Timed, exact_trace, full_data, measured, timed_net
from util import close, randn


def small(layers=None):
    torch.manual_seed(0)
    layers = layers or [nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)]
    x, y = randn(90, 1, 2, 3, dtype=torch.float32), torch.arange(90) % 3
    return Timed("small", nn.Sequential(*layers), x, y, nn.CrossEntropyLoss())


def dense(net):
    local = net.source(90, torch.Generator().manual_seed(0)).at((net.x, net.y), 0)
    H = local.block(torch.eye(net.size)).double()
    return (H + H.mT) / 2


def test_the_truth_is_that_of_the_dense_hessian():
    net = small()
    H, found = dense(net), measured(net, 4, 50)
    values = torch.linalg.eigvalsh(H)
    close(found.top, values.flip(0)[:5], 1e-4)
    assert found.trace == pytest.approx(float(H.trace()), rel=1e-4)
    x = values[40:45] + 1e-3
    low, high = found.measure.bounds(x)
    share = (values[None] <= x[:, None]).double().mean(1)
    assert bool(((low - 0.15 <= share) & (share <= high + 0.15)).all())  # four starts of 65 numbers


def test_the_exact_trace_is_of_dense_layers_alone():
    assert math.isnan(exact_trace(small([nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(4, 3)])))


def test_the_truth_is_computed_once_and_read_from_its_file_afterwards(tmp_path, monkeypatch):
    net = small()
    monkeypatch.setattr(timed_nets, "timed_net", lambda name: net)
    full_data.cache_clear()
    first = full_data("digits", tmp_path)
    full_data.cache_clear()
    monkeypatch.setattr(timed_nets, "measured", None)
    again = full_data("digits", tmp_path)
    full_data.cache_clear()
    assert torch.equal(first.top, again.top)
    assert first.trace == again.trace
    assert torch.equal(first.measure.T, again.measure.T)


def test_sizes_are_what_names_say():
    for name, wanted in {"1e4 weights": 1e4, "1e5 weights": 1e5, "1e6 weights": 1e6}.items():
        size = sum(p.numel() for p in nn.Sequential(*NETS[name].layers()).parameters())
        assert 0.9 < size / wanted < 1.2
    assert sum(p.numel() for p in nn.Sequential(*NETS["MNIST CNN"].layers()).parameters()) == 11_722
    assert timed_net("digits").points == 1797


CALLS = {
    "curvlinops": (timed_tools.curvlinops_top, timed_tools.curvlinops_trace, timed_tools.curvlinops_density),
    "hessian_eigenthings": (
        timed_tools.eigenthings_top,
        timed_tools.eigenthings_trace,
        timed_tools.eigenthings_density,
    ),
    "pyhessian": (timed_tools.pyhessian_top, timed_tools.pyhessian_trace),
    "matfree": (matfree_tools.top, matfree_tools.trace, matfree_tools.density),
    "infhess": (
        lambda net, points, _, g: timed_tools.infhess_top(net, points, g),
        lambda net, points, _, g: timed_tools.infhess_trace(net, points, 600, g),
        timed_tools.infhess_density,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("package", CALLS)
def test_with_all_of_the_data_every_tool_finds_the_truth(package):
    pytest.importorskip(package)
    if package == "matfree":
        pytest.importorskip("jax")
    net, g = small(), torch.Generator().manual_seed(0)
    H = dense(net)
    values = torch.linalg.eigvalsh(H)
    top, total, *shares = CALLS[package]
    close(top(net, 90, 40, g).value[:3].double(), values.flip(0)[:3], 0.03)
    assert total(net, 90, 60, g).value == pytest.approx(float(H.trace()), rel=0.35)
    for call in shares:
        found = call(net, 90, 4, 30, g).value
        assert float(found(values[-1:] + 1.0)) == pytest.approx(1.0)
        assert float(found(values[:1] - 1.0)) == pytest.approx(0.0, abs=1e-3)
