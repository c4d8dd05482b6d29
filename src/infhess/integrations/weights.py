"""Averaged weights in a model from one event to another, with BatchNorm's running statistics for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from infhess.integrations.events import averaging
from infhess.optim.averaging.averaged import KEPT


class Weights:
    """Swaps the weights of a model, and keeps the last batches where it has BatchNorm, to gather its statistics on."""

    def __init__(
        self, model: nn.Module, optimizers: Callable[[], Iterable[Any]], loss: Callable[[Any], Tensor]
    ) -> None:
        self._model, self._optimizers, self._loss = model, optimizers, loss
        self._recent: deque[Any] = deque(maxlen=KEPT)
        self.running: dict[str, Tensor] = {}  # statistics of training, while others stand in the model

    def train(self, batch: Any) -> None:
        """Training goes on, with this batch."""
        for opt in averaging(self._optimizers()):
            opt.train()
        buffers = dict(self._model.named_buffers())
        for name, value in self.running.items():
            buffers[name].copy_(value)
        self.running = {}
        if norms(self._model):
            self._recent.append(batch)

    def eval(self) -> None:
        """The averaged weights until training goes on."""
        self.running = self.running or running(self._model)
        for opt in averaging(self._optimizers()):
            opt.eval(*self._to_gather())

    @contextmanager
    def averaged(self) -> Iterator[dict[str, Tensor]]:
        """The averaged weights within; gives the statistics of training, which a checkpoint needs beside them."""
        before = {name: value.clone() for name, value in (self.running or running(self._model)).items()}
        with ExitStack() as stack:
            for opt in averaging(self._optimizers()):
                stack.enter_context(opt.averaged(*self._to_gather()))
            yield before

    def _to_gather(self) -> tuple[Any, ...]:
        return (self._loss, list(self._recent)) if self._recent else ()


def norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Its BatchNorm layers with running statistics."""
    found = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}
    return {name: norm for name, norm in found.items() if norm.running_mean is not None}


def running(model: nn.Module) -> dict[str, Tensor]:
    """These statistics as they stand."""
    return {
        f"{name}.{key}" if name else key: value.clone()
        for name, norm in norms(model).items()
        for key, value in norm.named_buffers(recurse=False)
    }
