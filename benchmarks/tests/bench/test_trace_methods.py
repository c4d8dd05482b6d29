"""Estimates of a trace on mini-batches: each is right on average, and the table says how far off."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from infhess import Hessian
from infhess_bench.bench import trace_methods
from infhess_bench.bench.trace_methods import EXPERIMENT, METHODS
from infhess_bench.harness import Row
from util import randn


def source(seed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 4)).double()
    data = list(zip(randn(200, 8).split(200), randn(200, 4, seed=1).split(200)))
    return Hessian(lambda b: (model(b[0]) - b[1]).square().mean(), model.parameters(), data)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_trace_on_average(method):
    whole = source(0)
    H = whole.at(next(iter([(randn(200, 8), randn(200, 4, seed=1))])), 0).block(
        torch.eye(whole.size, dtype=torch.float64)
    )
    g = torch.Generator().manual_seed(0)
    found = torch.tensor([METHODS[method](source(i), g).value for i in range(12)])
    assert abs(float(found.mean()) - float(H.trace())) < 4 * float(found.std()) / 12**0.5 + 1e-9


def test_a_cell_has_error_cost_and_coverage(monkeypatch):
    (row,) = trace_methods.measured(Row(EXPERIMENT, "digits-logistic", "infhess.trace", 0, 64), 4)
    assert row.loss < 0.5
    assert row.products > 0
    assert 0 <= row.metric <= 1
    text = trace_methods.summary([row])
    assert (
        f"| digits-logistic | infhess.trace | – | {row.loss:.3f}, {row.seconds:.2f}, {100 * row.metric:.0f} % | – |"
        in text
    )
