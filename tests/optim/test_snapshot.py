"""Snapshots: corrected gradients against the full one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import infhess

F64 = torch.float64


def finite_sum():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=g, dtype=F64), torch.randn(60, generator=g, dtype=F64)
    w = nn.Parameter(torch.zeros(5, dtype=F64))
    return w, (x, y), lambda b: (b[0] @ w - b[1]).square().mean() + w.pow(4).sum()


def test_corrected_gradients_are_right_on_average_and_exact_at_the_snapshot():
    w, data, loss = finite_sum()
    parts = list(zip(data[0].split(7), data[1].split(7)))
    snapshot = infhess.Snapshot(loss, [w])
    assert snapshot.take(parts) == 60
    full = torch.autograd.grad(loss(data), [w])[0]
    for batch in parts:
        w.grad = None
        loss(batch).backward()
        snapshot.correct(batch)
        torch.testing.assert_close(w.grad, full)
    w.data += 0.3
    there, total = w.detach().clone(), torch.zeros(5, dtype=F64)
    for batch in parts:
        w.grad = None
        loss(batch).backward()
        snapshot.correct(batch)
        total += len(batch[0]) / 60 * w.grad
    torch.testing.assert_close(total, torch.autograd.grad(loss(data), [w])[0])
    assert torch.equal(w, there)


def test_a_snapshot_without_data_or_with_nan_keeps_the_one_before():
    w, data, loss = finite_sum()
    snapshot = infhess.Snapshot(loss, [w])
    loss(data).backward()
    before = w.grad.clone()
    snapshot.correct(data)
    assert torch.equal(w.grad, before)
    with pytest.raises(ValueError, match="at least one batch"):
        snapshot.take([])
    snapshot.take([data])
    mean = snapshot.mean[0].clone()
    with pytest.raises(ValueError, match="not finite"):
        snapshot.take([(data[0] * float("nan"), data[1])])
    assert torch.equal(snapshot.mean[0], mean)


def test_a_snapshot_leaves_buffers_and_gradients_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x = torch.randn(12, 3)
    snapshot = infhess.Snapshot(lambda b: model(b).square().mean(), model.parameters())
    buffers = [b.clone() for b in model.buffers()]
    snapshot.take(x.split(4))
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers()))
    assert all(p.grad is None for p in model.parameters())
