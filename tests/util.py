"""Matrices with a prescribed spectrum, and tolerances by dtype."""

from __future__ import annotations

import queue

import pytest
import torch

F64 = torch.float64
RTOL = {torch.float64: 1e-8, torch.float32: 2e-4}


def randn(*shape, seed=0, dtype=F64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def orthogonal(n, seed=0, dtype=F64):
    return torch.linalg.qr(randn(n, n, seed=seed)).Q.to(dtype)


def spectrum(values, seed=0, dtype=F64):
    """A symmetric matrix with these eigenvalues in a random basis."""
    values = torch.as_tensor(values, dtype=F64)
    Q = orthogonal(len(values), seed)
    return ((Q * values) @ Q.mT).to(dtype)


def spd(n, seed=0):
    A = randn(n, n, seed=seed)
    return A @ A.mT + 0.1 * torch.eye(n, dtype=F64)


def close(a, b, rtol=1e-8, atol=None):
    """max |a − b| relative to the largest entry of b."""
    a, b = torch.as_tensor(a, dtype=F64), torch.as_tensor(b, dtype=F64)
    scale = float(b.abs().max()) if b.numel() else 1.0
    error = float((a - b).abs().max()) if b.numel() else 0.0
    assert a.shape == b.shape, (a.shape, b.shape)
    assert error <= (rtol * scale if atol is None else atol), f"error {error:.3g}, scale {scale:.3g}"


def fast_and_long(name, few, many):
    """A test of a random thing, with few repetitions for `make test` and with many for `make test-long`."""
    return pytest.mark.parametrize(name, [few, pytest.param(many, marks=pytest.mark.long)])


def in_two_processes(target, *args):
    """What target(rank, *args, results) puts into the queue `results`, in two processes side by side."""
    return in_processes(2, target, *args)


def in_processes(number, target, *args):
    """The same in so many processes."""
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=target, args=(rank, *args, results), daemon=True) for rank in range(number)]
    for process in processes:
        process.start()
    try:
        found = [_next(results, processes) for _ in processes]
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * number
    finally:
        for process in processes:
            process.kill()
    return found


def _next(results, processes):
    """The next result, however long it takes, unless a process has died."""
    while True:
        try:
            return results.get(timeout=1)
        except queue.Empty:
            assert not any(process.exitcode for process in processes), "a process died before it had a result"
