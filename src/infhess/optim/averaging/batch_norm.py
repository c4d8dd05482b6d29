"""BatchNorm at the averaged weights: its running statistics gathered again, and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from infhess.curvature.batches import mapped, size_of
from infhess.curvature.untouched import untouched

Recent = tuple[Callable[[Any], Tensor], Any]  # a loss, and a batch for it
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class Statistics:
    """The running statistics of BatchNorm layers: kept, gathered again at the present weights, and put back."""

    def __init__(self, norms: Iterable[_BatchNorm]) -> None:
        self.norms = [norm for norm in norms if norm.running_mean is not None]
        self._kept = [_copied(norm) for norm in self.norms]

    def gather(self, recent: Iterable[Recent], params: Sequence[Tensor]) -> None:
        """Means over batches, each counted once; everything else that a loss may touch is left alone."""
        if not self.norms:
            return
        modes = [(norm.momentum, norm.training) for norm in self.norms]
        try:
            with untouched(params, 0):
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
            if int(values[2]) > 0:  # layers that did not run keep what they had
                _write(norm, values)

    def put_back(self) -> None:
        """As they were."""
        for norm, kept in zip(self.norms, self._kept):
            _write(norm, kept)


def _copied(norm: _BatchNorm) -> list[Tensor]:
    return [getattr(norm, name).detach().clone() for name in BUFFERS]


def _write(norm: _BatchNorm, values: Sequence[Tensor]) -> None:
    for name, value in zip(BUFFERS, values):
        getattr(norm, name).data.copy_(value)


def norms_in(loss: Callable[[Any], Tensor], batch: Any, params: Sequence[Tensor]) -> list[_BatchNorm]:
    """The BatchNorm layers that a loss runs through, by one forward pass that leaves nothing behind."""
    with untouched(params, 0) as watch:
        loss(batch)
    return watch.norms


def kept(batch: Any) -> Any:
    """A batch without graphs."""
    return mapped(
        lambda parts: parts[0].detach() if isinstance(parts[0], Tensor) else parts[0], [batch], size_of(batch)
    )
