"""The random state of the CPU and of the devices that parameters are on, whatever their kind."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


class RandomState:
    """The state of all generators that a loss of these parameters draws from by default.

    >>> import torch
    >>> state = RandomState([torch.ones(1)])
    >>> first = torch.rand(3)
    >>> state.restore()
    >>> bool((torch.rand(3) == first).all())
    True
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._devices = sorted({p.device for p in params if _module(p.device) is not None}, key=str)
        self._cpu = torch.default_generator.get_state()
        self._others: list[Tensor] = [_module(device).get_rng_state(device) for device in self._devices]

    def restore(self) -> None:
        """Put all generators back into this state."""
        torch.default_generator.set_state(self._cpu)
        for device, state in zip(self._devices, self._others):
            _module(device).set_rng_state(state, device)

    def seed(self, seed: int) -> None:
        """Seed all these generators."""
        # Not torch.manual_seed: without CUDA it records a traceback at each call.
        torch.default_generator.manual_seed(seed)
        for device in self._devices:
            with _on(device):
                _module(device).manual_seed(seed)

    def same(self, other: RandomState) -> bool:
        """Whether nothing was drawn between these two."""
        pairs = zip((self._cpu, *self._others), (other._cpu, *other._others))
        return all(torch.equal(a, b) for a, b in pairs)


def _module(device: torch.device) -> Any:
    """The module of a kind of device, such as torch.cuda, torch.mps or a registered one; None if it has no generators."""
    module = None if device.type == "cpu" else getattr(torch, device.type, None)
    return module if hasattr(module, "get_rng_state") else None


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Within, this is the present device of its kind; MPS has only one."""
    chosen: Any = getattr(_module(device), "device", None)
    return nullcontext() if chosen is None else chosen(device)
