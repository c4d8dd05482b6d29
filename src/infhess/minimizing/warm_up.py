"""SGD with an automatic learning rate, before the first full gradient."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from infhess.curvature.batches import Batch, size_of, sliced
from infhess.curvature.flat import Flat
from infhess.minimizing.choice import SGD_BATCH
from infhess.minimizing.objective import Objective
from infhess.optim import Preconditioned


class WarmUp:
    """SGD with `observe`, and the mean of its iterates, with weight 4/(t+4) for the newest.

    Attributes:
        average: the mean of iterates, flat.
        products, product_points: Hessian-vector products computed, and the points in them.
        notes: what happened on the way.

    """

    def __init__(self, objective: Objective) -> None:
        self.objective, self.over = objective, False
        self.average = objective.weights
        self.steps, self.products, self.product_points = 0, 0, 0
        self.notes: list[str] = []
        self._optimizer = Preconditioned(torch.optim.SGD(objective.flat.live, lr=1.0))

    def step(self, batch: Batch, cut: bool) -> None:
        """One step, or several on slices of a large batch; stops for good once a step fails."""
        try:
            for part in parts_of(batch, SGD_BATCH) if cut and not self.over else [batch]:
                if not self.over:
                    self._step(part, cut)
        except ValueError as error:
            self.notes.append(f"sgd ended after {self.steps} steps: {error}")
            self.over = True

    def _step(self, batch: Batch, split: bool) -> None:
        optimizer = self._optimizer
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = self.objective.loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        report = optimizer.observe(self.objective.loss, batch, split=split)
        optimizer.step()
        self.steps += 1
        w = self.objective.weights
        if not bool(torch.isfinite(w).all()):
            raise ValueError("the weights have left all bounds")
        self.average = self.average.lerp(w, 4 / (self.steps + 4) if self.steps > 1 else 1.0)
        if report is not None:
            self.products += report.products
            self.product_points += report.product_points
            self.notes += [n for n in report.notes if n.startswith("negative curvature") and n not in self.notes]


def parts_of(batch: Batch, most: int) -> list[Batch]:
    """A batch in slices of about equal size, with at most this many points each."""
    return sliced([batch], -(-size_of(batch) // most)) if size_of(batch) > most else [batch]


@contextmanager
def gradients_kept(flat: Flat) -> Iterator[None]:
    """Restores `.grad` of every parameter afterwards."""
    before = [p.grad for p in flat.params]
    try:
        for p in flat.params:
            p.grad = None
        yield
    finally:
        for p, g in zip(flat.params, before):
            p.grad = g
