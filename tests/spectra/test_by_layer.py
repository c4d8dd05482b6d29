"""Diagonals, and traces and spectra of layers, against the blocks of the exact matrix."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import infhess
from infhess import Hessian, diagonal, spectrum, trace
from util import F64, close, fast_and_long, randn


def net(n=1200, seed=0, batch=32):
    """A source with names, and the exact matrix over all the data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = randn(n, 5, seed=seed + 1), randn(n, 3, seed=seed + 2)

    def loss(b):
        return nn.functional.mse_loss(model(b[0]), b[1])

    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    batches = list(zip(x[order].split(batch), y[order].split(batch)))
    source = Hessian(loss, model.named_parameters(), batches)
    return source, source.fresh(batches).at((x, y), 0).block(torch.eye(source.size, dtype=F64))


BLOCKS = {"0": slice(0, 36), "2": slice(36, 57)}


@fast_and_long("trials", 5, 60)
def test_diagonals_and_traces_of_layers_are_covered(trials):
    entries, traces = [], []
    for seed in range(trials):
        source, H = net(seed=seed)
        g = torch.Generator().manual_seed(seed)
        low, high = diagonal(source, generator=g).interval()
        entries.append((low <= H.diagonal()) & (H.diagonal() <= high))
        for name, found in trace(source, by="layer", generator=g).items():
            low, high = found.interval()
            traces.append(torch.tensor(low <= float(H.diagonal()[BLOCKS[name]].sum()) <= high))
    assert 0.92 - 0.2 / trials <= float(torch.stack(entries).double().mean()) <= 0.99
    assert float(torch.stack(traces).double().mean()) >= 0.9 - 0.7 / trials


def test_traces_of_layers_come_from_the_products_of_the_whole_and_sum_to_its_trace():
    g = torch.Generator()
    parts = trace(net()[0], by="layer", generator=g.manual_seed(1))
    whole = trace(net()[0], generator=g.manual_seed(1))
    assert list(parts) == ["0", "2"]
    assert sum(p.value for p in parts.values()) == pytest.approx(whole.value)
    assert {p.products for p in parts.values()} == {whole.products} == {36}


def test_spectra_of_layers_share_their_data():
    source, H = net()
    found = spectrum(source, 2, by="layer", points=1200)
    for name, part in found.items():
        block = H[BLOCKS[name], BLOCKS[name]]
        close(part.values, torch.linalg.eigvalsh(block).flip(0)[:2], 1e-2)
        close(part.vectors.mT @ part.vectors, torch.eye(2), 1e-9)
        assert float(part.std.max()) == 0.0
        exact = (part.vectors * (block @ part.vectors)).sum(0)
        close(part.along(list(source.stream._batches), points=1200).values, exact, 1e-9)
    steps = source.data_points // 1200
    assert {p.data_points for p in found.values()} == {1200 * steps}
    assert steps <= 24


@fast_and_long("trials", 4, 60)
def test_intervals_of_layers_cover(trials):
    hits = []
    for seed in range(trials):
        source, H = net(seed=seed)
        for name, part in spectrum(source, 2, by="layer", generator=torch.Generator().manual_seed(seed)).items():
            (low, high), truth = part.interval(), torch.linalg.eigvalsh(H[BLOCKS[name], BLOCKS[name]]).flip(0)[:2]
            hits.append((low <= truth) & (truth <= high))
    assert float(torch.stack(hits).double().mean()) >= 0.92 - 0.4 / trials


def test_with_a_tolerance_each_layer_goes_on_by_itself():
    source, _ = net()
    found = spectrum(source, 1, 0.1, by="layer")
    assert {s.stopped for s in found.values()} <= {"tolerance", "all data"}


def test_small_layers_and_bad_input():
    w = {"a": torch.zeros(1, requires_grad=True), "b.x": torch.zeros(3, requires_grad=True)}
    source = Hessian(lambda x: (x * w["a"]).square().mean() + w["b.x"].square().sum(), w, [torch.ones(4)])
    found = spectrum(source, 2, by="layer")
    assert [len(s.values) for s in found.values()] == [1, 2]
    for call in (spectrum, trace):
        with pytest.raises(ValueError, match='by: expected None or "layer"'):
            call(source, by="block")
        with pytest.raises(ValueError, match="parameters have names"):
            call(torch.eye(3), by="layer")
    with pytest.raises(TypeError, match="tolerance"):
        spectrum(source, tolerance=1)


def test_the_signature_tells_of_all_options():
    names = set(inspect.signature(infhess.spectrum).parameters)
    assert {*inspect.signature(infhess.spectrum_rounds).parameters, "by"} == names
