"""Variance reduction for finite data: gradients corrected by those at a snapshot (SVRG, Johnson & Zhang 2013)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from infhess._precision import full_precision
from infhess.curvature.batches import Batch, size_of
from infhess.curvature.flat import Flat
from infhess.curvature.untouched import untouched


class Snapshot:
    """g(w) − g(w̃) + ∇L(w̃) instead of the gradient g(w) of a batch: the noise falls as w comes near the snapshot w̃.

    Worth it on least squares that is read three to five times: on sarcos-map of `infhess bench convex` it is then ahead of
    `observe` alone and of `minimize`. With more passes, and on logistic problems, `minimize` is ahead; with fewer, `observe`.

    Args:
        loss: batch ↦ scalar, the mean loss of a batch; it closes over the model.
        params: the parameters that are trained.

    >>> import torch, infhess
    >>> w = torch.nn.Parameter(torch.zeros(1)); data = torch.tensor([1.0, 2.0, 6.0])
    >>> loss = lambda batch: (batch - w).square().mean()
    >>> snapshot = infhess.Snapshot(loss, [w])
    >>> snapshot.take([data])                         # one pass: ∇L = −6 at w = 0
    3
    >>> loss(data[:1]).backward(); float(w.grad)      # of one point: −2
    -2.0
    >>> snapshot.correct(data[:1]); float(w.grad)     # as if it were of all of them
    -6.0

    """

    def __init__(self, loss: Callable[[Batch], Tensor], params: Iterable[Tensor]) -> None:
        self.loss, self.flat = loss, Flat(params)
        self.weights: list[Tensor] = []
        self.mean: list[Tensor] = []

    @full_precision
    def take(self, batches: Iterable[Batch]) -> int:
        """The mean gradient at the present parameters, by one pass over the batches; returns the data points read."""
        total = [torch.zeros_like(p) for p in self.flat.live]
        points = 0
        for batch in batches:
            size = size_of(batch)
            torch._foreach_add_(total, self._gradient(batch), alpha=float(size))
            points += size
        if not points:
            raise ValueError("batches: expected at least one batch, got none")
        torch._foreach_div_(total, float(points))
        if not all(bool(torch.isfinite(g).all()) for g in total):
            raise ValueError("the gradient over all the data is not finite; the snapshot before is kept")
        self.weights, self.mean = [p.detach().clone() for p in self.flat.live], total
        return points

    @full_precision
    def correct(self, batch: Batch) -> None:
        """Call it between backward and step, before `observe`; without a snapshot it does nothing."""
        if not self.weights:
            return
        with self._at_snapshot():
            there = self._gradient(batch)
        for p, mean, old in zip(self.flat.live, self.mean, there):
            if p.grad is not None:
                p.grad = p.grad + (mean - old)

    def _gradient(self, batch: Batch) -> list[Tensor]:
        live = self.flat.live
        with untouched(self.flat.params, 0):
            found = torch.autograd.grad(self.loss(batch), live, allow_unused=True, materialize_grads=True)
        return [g.detach() for g in found]

    @contextmanager
    def _at_snapshot(self) -> Iterator[None]:
        before = [p.detach().clone() for p in self.flat.live]
        try:
            for p, w in zip(self.flat.live, self.weights):
                p.data.copy_(w)
            yield
        finally:
            for p, w in zip(self.flat.live, before):
                p.data.copy_(w)
