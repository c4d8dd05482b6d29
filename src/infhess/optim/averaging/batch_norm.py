"""BatchNorm at the averaged weights: its running statistics are recomputed, and restored afterwards."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from infhess.curvature.batches import Batch, size_of, tree_map
from infhess.curvature.no_side_effects import no_side_effects
from infhess.optim.checkpoint import Loss

Params = Callable[[], Sequence[Tensor]]
Recent = tuple[Loss, Batch]
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
# Batches kept to recompute statistics at the averaged weights, if there are BatchNorm layers.
KEPT = 16


class KeptBatches:
    """The last observed batches, kept only if the loss runs through BatchNorm layers."""

    def __init__(self) -> None:
        self.recent: deque[Recent] = deque(maxlen=KEPT)
        self.norms: list[_BatchNorm] | None = None  # None: not known yet

    def add(self, loss: Loss, batch: Batch, params: Params) -> None:
        """Add a batch, detached from graphs."""
        if self.norms is None:
            self.norms = norms_in(loss, batch, params())
        if self.norms:
            self.recent.append((loss, kept(batch)))

    def to_gather(self, loss: Loss | None, batches: Iterable[Batch], params: Params) -> Iterable[Recent]:
        """The given batches with their loss, or the last observed ones."""
        if loss is not None:
            given = iter(batches)
            first = next(given, None)
            if first is None:
                raise ValueError("batches: expected at least one batch for BatchNorm's statistics, got none")
            self.norms = self.norms or norms_in(loss, first, params())
            return ((loss, batch) for batch in chain([first], given))
        if not isinstance(batches, tuple) or batches:
            raise ValueError("batches: expected a loss with them, as in averaged(loss, batches)")
        return list(self.recent)


class Statistics:
    """The running statistics of BatchNorm layers: saved, recomputed at the present weights, and restored."""

    def __init__(self, norms: Iterable[_BatchNorm]) -> None:
        self.norms = [norm for norm in norms if norm.running_mean is not None]
        self._kept = [_copied(norm) for norm in self.norms]

    def gather(self, recent: Iterable[Recent], params: Sequence[Tensor]) -> None:
        """Average over batches with equal weights; nothing else that the loss may touch is changed."""
        if not self.norms:
            return
        modes = [(norm.momentum, norm.training) for norm in self.norms]
        try:
            with no_side_effects(params, 0):
                for norm in self.norms:
                    norm.reset_running_stats()
                    norm.momentum, norm.training = None, True
                for loss, batch in recent:
                    loss(batch)
                found = [_copied(norm) for norm in self.norms]
        finally:
            for norm, (momentum, training) in zip(self.norms, modes):
                norm.momentum, norm.training = momentum, training
            self.put_back()
        for norm, values in zip(self.norms, found):
            if int(values[2]) > 0:  # layers that did not run keep their statistics
                _write(norm, values)

    def put_back(self) -> None:
        """Restore the saved statistics."""
        for norm, kept in zip(self.norms, self._kept):
            _write(norm, kept)


def _copied(norm: _BatchNorm) -> list[Tensor]:
    return [getattr(norm, name).detach().clone() for name in BUFFERS]


def _write(norm: _BatchNorm, values: Sequence[Tensor]) -> None:
    for name, value in zip(BUFFERS, values):
        getattr(norm, name).data.copy_(value)


def norms_in(loss: Loss, batch: Batch, params: Sequence[Tensor]) -> list[_BatchNorm]:
    """The BatchNorm layers that a loss runs through, found by one forward pass without side effects."""
    with no_side_effects(params, 0) as trace:
        loss(batch)
    return trace.norms


def kept(batch: Batch) -> Batch:
    """A batch detached from graphs."""

    def detached(parts: Sequence[Tensor]) -> Tensor:
        return parts[0].detach() if isinstance(parts[0], Tensor) else parts[0]

    return tree_map(detached, [batch], size_of(batch))
