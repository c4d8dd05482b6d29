"""Diagonals, and traces and spectra of layers, against the blocks of the exact matrix."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

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


REFUSED = {
    "budget": ({"budget": -5}, "budget: expected 1 or more, got -5"),
    "points": ({"points": 0}, "points: expected 1 or more, got 0"),
    "directions": ({"k": 3, "directions": 2}, "directions: expected at least k = 3, got 2"),
    "memory": ({"memory": 0}, "memory: expected 1 or more, got 0"),
    "generator": ({"generator": 3}, "generator: expected a torch.Generator"),
    "k": ({"k": 0}, "k: expected 1 "),
    "k, of no number": ({"k": "2"}, "k: expected a whole number, got '2'"),
    "k, half of one": ({"k": 2.5}, "k: expected a whole number, got 2.5"),
    "rtol": ({"rtol": -0.1}, "rtol: expected a number above 0, got -0.1"),
}


@pytest.mark.parametrize("rtol", [None, 0.5])
@pytest.mark.parametrize("name", REFUSED)
def test_both_ways_refuse_the_same_before_they_read_data(name, rtol):
    options, said = REFUSED[name]
    for by in (None, "layer"):
        source, _ = net()
        with pytest.raises((TypeError, ValueError), match=re.escape(said)):
            spectrum(source, **{"rtol": rtol} | options, by=by)
        assert source.data_points == 0


def test_memory_is_divided_among_layers_and_too_little_is_named_as_given():
    least = 8 * 3 * (36 + 21)  # two directions and one to come
    with pytest.raises(ValueError, match=f"memory: expected at least {least:,} bytes for .* 2 layers, got 1;"):
        spectrum(net()[0], 2, by="layer", memory=1)
    with pytest.raises(ValueError, match=f"got {least - 1:,};"):
        spectrum(net()[0], 2, by="layer", memory=least - 1)
    found = spectrum(net()[0], 2, by="layer", memory=least)
    assert all(len(part._ritz.values) == 2 for part in found.values())


def test_an_unknown_noise_is_warned_of_in_both_ways():
    source, _ = net(n=64, batch=64)
    dropped = nn.Dropout(0.5)
    loss = lambda b: source.loss((dropped(b[0]), b[1]))  # noqa: E731
    batches = list(source.stream._batches)
    for by in (None, "layer"):
        random = Hessian(loss, source.flat.given, batches, split=False)
        with pytest.warns(UserWarning, match="nothing is known of the noise") as said:
            found = spectrum(random, 1, by=by)
        assert len(said) == 1
        assert all(bool(part.std.isnan().all()) for part in (found.values() if by else [found]))


@pytest.mark.parametrize("rtol", [None, 0.01])
def test_nothing_is_left_on_disk_by_a_loss_that_fails(rtol, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    source, _ = net()
    good, calls, on_disk = source.loss, [], []

    def fails(b):
        calls.append(1)
        on_disk.extend(tmp_path.iterdir())
        return good(b) if len(calls) < 6 else good(b) * float("nan")

    source.loss, source.mapped = fails, None
    with pytest.raises(ValueError, match="finite") as error:  # held: its frames would keep what they have opened
        spectrum(source, 2, rtol, by="layer", memory=2 * 8 * 3 * 36)
    assert on_disk
    assert not list(tmp_path.iterdir())
    del error
