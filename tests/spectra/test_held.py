"""Room for directions within a bound of bytes: full precision, bfloat16, disk, fewer; and nothing left on disk."""

from __future__ import annotations

import pytest
import torch

from infhess import Hessian, spectrum
from infhess.spectra import held
from infhess.spectra.held import CHUNKS, Deviations, Room, room_for
from small_data import loader, problem
from util import F64, close, randn

START = torch.zeros(100, dtype=F64)
FULL = 100 * 8 * (21 + CHUNKS * 20)
HALF = 100 * (21 * 8 + CHUNKS * 20 * 2)
Q_ALONE = 100 * 8 * 21


@pytest.mark.parametrize(
    ("memory", "room"),
    [
        (None, Room(20, F64)),
        (FULL, Room(20, F64)),
        (FULL - 1, Room(20, torch.bfloat16)),
        (HALF, Room(20, torch.bfloat16)),
        (HALF - 1, Room(20, torch.bfloat16, on_disk=True)),
        (Q_ALONE, Room(20, torch.bfloat16, on_disk=True)),
        (Q_ALONE - 1, Room(19, torch.bfloat16, on_disk=True)),
        (100 * 8 * 4, Room(3, torch.bfloat16, on_disk=True)),
    ],
)
def test_the_room_that_a_bound_leaves(memory, room):
    assert room_for(START, 3, 20, memory) == room


def test_a_bound_without_room_for_the_least_directions_names_what_is_needed():
    with pytest.raises(ValueError, match=r"memory: expected at least 3,200 bytes for 3 directions of 100 numbers"):
        room_for(START, 3, 20, 3199)


def test_without_a_bound_large_nets_are_held_in_bfloat16(monkeypatch):
    monkeypatch.setattr(held, "FULL_PRECISION", 1000)
    assert room_for(START, 3, 20, None) == Room(20, torch.bfloat16)
    monkeypatch.setattr(held, "IN_MEMORY", 1000)
    assert room_for(START, 3, 20, None) == Room(20, torch.bfloat16, on_disk=True)


@pytest.mark.parametrize("on_disk", [False, True])
def test_deviations_are_multiplied_with_later_directions(on_disk):
    deviations, kept = Deviations(Room(4, torch.bfloat16, on_disk)), randn(3, CHUNKS, 50)
    for d in kept:
        deviations.append(d)
    Q = randn(2, 50, seed=5)
    assert len(deviations) == 3
    for i, d in enumerate(kept):
        close(deviations.along(i, Q), d @ Q.mT, 0.02)
    assert deviations.bytes == (0 if on_disk else 3 * CHUNKS * 50 * 2)
    deviations.close()


def measured(tmp_path, monkeypatch, memory):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    loss, w, data, _ = problem(1000)
    return spectrum(Hessian(loss, [w], loader(data, 32)), 2, memory=memory)


def test_a_spectrum_within_a_bound_is_that_without_to_the_precision_of_bfloat16(tmp_path, monkeypatch):
    free = measured(tmp_path, monkeypatch, None)
    for memory in (8 * 9 * 8, 4000):
        found = measured(tmp_path, monkeypatch, memory)
        close(found.values, free.values, 1e-2)
        close(found.std, free.std, 5e-2)
        assert found.memory <= memory
        assert found.memory < free.memory
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_on_disk_by_a_loss_that_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    loss, w, data, _ = problem(1000)
    calls = []

    def fails(b):
        calls.append(1)
        return loss(b) if len(calls) < 4 else loss(b) * float("nan")

    with pytest.raises(ValueError, match="finite"):
        spectrum(Hessian(fails, [w], loader(data, 32)), 2, memory=8 * 9 * 8)
    assert not list(tmp_path.iterdir())


def test_bad_bounds():
    with pytest.raises(ValueError, match="memory: expected 1 or more"):
        spectrum(torch.eye(4), 1, memory=0)
    with pytest.raises(TypeError, match="memory: expected a whole number"):
        spectrum(torch.eye(4), 1, memory="1 GB")
