"""The sample that is kept: everything where it fits, else each point with the same probability."""

from __future__ import annotations

import pytest
import torch

from infhess.curvature.batches import size_of
from infhess.minimizing import reservoir as module
from infhess.minimizing.reservoir import Reservoir, bytes_of, in_chunks, is_sparse


def filled(n=1000, size=37, memory=1e9, capacity=100, seed=0, cut=True):
    r = Reservoir(memory, capacity, torch.Generator().manual_seed(seed))
    r.cut = cut
    for part in torch.arange(n, dtype=torch.float64).split(size):
        r.add({"x": part, "names": [str(int(i)) for i in part]})
    r.settle()
    return r


def points(batches):
    return torch.cat([b["x"] for b in batches])


def test_everything_is_kept_where_it_fits():
    r = filled()
    assert (r.whole, r.kept, r.points) == (True, 1000, 1000)
    assert torch.equal(points(r.chunks()), torch.arange(1000.0, dtype=torch.float64))


def test_ranges_of_ranks_are_apart_and_random():
    r = filled()
    first, second = points(r.between(0, 100)), points(r.between(100, 400))
    assert (len(first), len(second)) == (100, 300)
    assert not set(first.tolist()) & set(second.tolist())
    assert 350 < float(first.mean()) < 650


def test_what_belongs_to_a_point_stays_with_it():
    for batch in filled(memory=100).between(0, 50):
        assert [float(name) for name in batch["names"]] == batch["x"].tolist()


def test_a_sample_is_bounded_and_fair():
    counts = torch.zeros(200)
    for seed in range(200):
        r = filled(200, 7, memory=500, capacity=40, seed=seed)
        assert not r.whole
        assert r.kept <= 40
        counts[points(r.chunks()).long()] += 1 / r.kept
    assert float((counts / counts.mean() - 1).abs().max()) < 0.75
    assert float((counts[:100].mean() / counts[100:].mean() - 1).abs()) < 0.1


def test_batches_that_are_not_cut_come_whole():
    r = filled(memory=3000, capacity=200, cut=False)
    assert not r.whole
    assert all(size_of(b) in (37, 1000 % 37) for b in r.chunks())


def test_batches_that_cannot_be_joined_come_whole():
    r = Reservoir(1e9, 100, torch.Generator())
    for width in (3, 4, 5):
        r.add(torch.zeros(10, width))
    r.settle()
    assert not r.cut
    assert [b.shape for b in r.chunks()] == [(10, 3), (10, 4), (10, 5)]
    assert "cannot be joined" in r.notes[0]


def test_chunks_are_large(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 100)
    sizes = [len(c) for c in in_chunks(torch.arange(1005).split(10), True)]
    assert sizes == [100] * 10 + [5]
    assert [len(c) for c in in_chunks(torch.arange(25).split(10), False)] == [10, 10, 5]


@pytest.mark.parametrize("sparse", [False, True])
def test_bytes(sparse):
    x = torch.eye(4, dtype=torch.float64)
    assert bytes_of((x.to_sparse() if sparse else x, x)) == (4 * 24 if sparse else 128) + 128
    assert is_sparse([x.to_sparse()])
    assert not is_sparse([x])


def test_shuffled_points_are_those_of_the_range_in_another_order():
    r = filled()
    (batch,) = r.shuffled(100, 400)
    inside = points(r.between(100, 400))
    assert torch.equal(batch["x"].sort().values, inside)
    assert not torch.equal(batch["x"], inside)
    assert batch["names"] == [str(int(i)) for i in batch["x"]]
    uncut = filled(cut=False)
    assert sorted(map(len, (b["x"] for b in uncut.shuffled(0, 1000)))) == [1, *[37] * 27]
