"""Checkpoints of both optimizers: scalars as one tensor, and loading that changes nothing where it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

Some = TypeVar("Some", bound="Scalars")


@dataclass
class Scalars:
    """Floats that go into a checkpoint as one tensor. New fields go last: their order is the file's."""

    def tensor(self) -> Tensor:
        """All of them in double precision."""
        return torch.tensor([getattr(self, name) for name in self.__dataclass_fields__], dtype=torch.float64)

    @classmethod
    def of(cls: type[Some], tensor: Tensor) -> Some:
        """From such a tensor; from a shorter one, of an earlier version, what it has."""
        names = [f.name for f in fields(cls)]
        if len(tensor) > len(names):
            got, most = len(tensor), len(names)
            raise ValueError(f"state_dict: expected up to {most} numbers, got {got}; is it of another version?")
        return cls(**dict(zip(names, tensor.tolist())))


class Checkpointed(torch.optim.Optimizer):
    """An optimizer that checks all of a checkpoint before it takes over any of it."""

    _incoming: Any = None  # what is to be adopted once torch has accepted its own part

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """What torch makes of a class's `step`; the range for profilers, a fifth of a small step, only while one is running."""
        watched = torch_optimizer.Optimizer.profile_hook_step(func)

        @wraps(func)
        def step(self: Checkpointed, *args: Any, **kwargs: Any) -> Any:
            hooks = (
                self._optimizer_step_pre_hooks
                or self._optimizer_step_post_hooks
                or torch_optimizer._global_optimizer_pre_hooks
                or torch_optimizer._global_optimizer_post_hooks
            )
            # The compiler cannot trace the question whether a profiler runs.
            if hooks or (not torch.compiler.is_compiling() and torch._C._autograd._profiler_enabled()):
                return watched(self, *args, **kwargs)
            return func(self, *args, **kwargs)

        return step

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a checkpoint; where it does not fit, nothing changes."""
        hook = self.register_load_state_dict_pre_hook(
            lambda _, given: self._accept(given)
        )  # after the user's own hooks
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
            self._incoming = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._incoming is not None:
            self._adopt(self._incoming)

    def _accept(self, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        """Check a checkpoint and put our part into `_incoming`; returns the part for torch, None for all of it."""
        raise NotImplementedError

    def _adopt(self, incoming: Any) -> None:
        """Take over what was checked."""
        raise NotImplementedError

    def _params(self) -> list[Tensor]:
        """All parameters, in the order of the groups."""
        return [p for group in self.param_groups for p in group["params"]]

    @staticmethod
    def _names(state_dict: dict[str, Any]) -> list[Any]:
        """What a checkpoint calls the parameters, in the order of its groups."""
        return [name for group in state_dict["param_groups"] for name in group["params"]]
