"""The averaged weights in the place of those that train: swapped in and out, with BatchNorm's statistics made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from infhess.curvature.untouched import untouched

Recent = tuple[Callable[[Any], Tensor], Any]  # a loss, and a batch for it
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Statistics:
    """The running statistics of BatchNorm layers: kept, gathered anew at the present weights, and put back."""

    def __init__(self, norms: Iterable[_BatchNorm]) -> None:
        self.norms = [norm for norm in norms if norm.track_running_stats and norm.running_mean is not None]
        self._kept = [[_buffer(norm, name).clone() for name in BUFFERS] for norm in self.norms]

    def gather(self, recent: Sequence[Recent]) -> None:
        """Means over batches, each counted once; everything else that a loss may touch is left alone."""
        if not (self.norms and recent):
            return
        modes = [(norm.momentum, norm.training) for norm in self.norms]
        try:
            for norm in self.norms:
                norm.reset_running_stats()
                norm.momentum, norm.training = None, True
            with torch.random.fork_rng(), torch.no_grad():
                for loss, batch in recent:
                    loss(batch)
        except BaseException:
            self.put_back()
            raise
        finally:
            for norm, (momentum, training) in zip(self.norms, modes):
                norm.momentum, norm.training = momentum, training

    def put_back(self) -> None:
        """As they were."""
        for norm, kept in zip(self.norms, self._kept):
            for name, before in zip(BUFFERS, kept):
                _buffer(norm, name).copy_(before)


def _buffer(norm: _BatchNorm, name: str) -> Tensor:
    found = getattr(norm, name)
    assert isinstance(found, Tensor)
    return found


def norms_in(loss: Callable[[Any], Tensor], batch: Any, params: Sequence[Tensor]) -> list[_BatchNorm]:
    """The BatchNorm layers in training mode that a loss runs through, by one forward pass that leaves nothing behind."""
    with untouched(params, 0) as watch, torch.no_grad():
        loss(batch)
    return watch.norms
