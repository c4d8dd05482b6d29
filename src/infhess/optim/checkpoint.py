"""What both optimizers share: a checkpoint that does not fit changes nothing, and training passes are watched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from infhess._checks import count
from infhess.curvature.batches import Batch
from infhess.curvature.flat import length, real
from infhess.curvature.training_pass import TrainingPass
from infhess.optim.effect import Effect, not_finite
from infhess.optim.graph_step import graph_step, numbered
from infhess.optim.sharded import is_sharded

Loss = Callable[[Batch], Tensor]  # mean loss of a batch
CHECKPOINT = 'state_dict: expected what state_dict() returns, a dict with "state" and "param_groups"'
Some = TypeVar("Some", bound="Scalars")


@dataclass
class Scalars:
    """Floats that are stored in a checkpoint as one tensor. Add new fields at the end: their order is the file format."""

    def tensor(self) -> Tensor:
        """All fields, in double precision."""
        return torch.tensor([getattr(self, name) for name in self.__dataclass_fields__], dtype=torch.float64)

    @classmethod
    def of(cls: type[Some], tensor: Tensor) -> Some:
        """Read such a tensor; a shorter one, from an earlier version, sets the fields that it has."""
        names = [f.name for f in fields(cls)]
        if len(tensor) > len(names):
            got, most = len(tensor), len(names)
            raise ValueError(f"state_dict: expected up to {most} numbers, got {got}; is it of another version?")
        return cls(**dict(zip(names, tensor.tolist())))


def _whole(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint, if it has both of its parts."""
    if missing := {"state", "param_groups"} - state_dict.keys():
        raise ValueError(f"{CHECKPOINT}, got none of {', '.join(sorted(missing))}")
    return state_dict


def params_of(groups: Iterable[dict[str, Any]]) -> list[Tensor]:
    """All parameters, in the order of the groups."""
    return [p for group in groups for p in group["params"]]


def finite(grads: Iterable[Tensor | None]) -> bool:
    """Whether gradients are finite; missing and sparse ones count as finite."""
    known = [real(g) for g in grads if g is not None and not g.is_sparse]
    return not known or math.isfinite(length([known]))


class CurvatureOptimizer(torch.optim.Optimizer):
    """Checks a whole checkpoint before it takes over any of it, and watches one training pass at a time."""

    _incoming: Any = None  # adopted once torch has accepted its own part of a checkpoint
    _effect: Effect
    _watching = False  # whether a watch() is open

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Each optimizer, a copy too, has a number of its own, by which compiled steps find it."""
        self: Any = super().__new__(cls)
        self._number, self._effect = numbered(self), Effect()
        return self

    def _params(self) -> list[Tensor]:
        return params_of(self.param_groups)

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """Like torch's wrapper of `step`, but with a profiler range, a fifth of a small step's time, only while profiling."""
        watched = torch_optimizer.Optimizer.profile_hook_step(func)

        @wraps(func)
        def step(self: CurvatureOptimizer, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return graph_step(self, *args, **kwargs)
            hooks = (
                self._optimizer_step_pre_hooks
                or self._optimizer_step_post_hooks
                or torch_optimizer._global_optimizer_pre_hooks
                or torch_optimizer._global_optimizer_post_hooks
            )
            try:
                if hooks or torch._C._autograd._profiler_enabled():
                    return watched(self, *args, **kwargs)
                return func(self, *args, **kwargs)
            except RuntimeError as error:
                self._check_dtypes(error)
                raise

        return step

    def _kept_as(self, p: Tensor) -> torch.dtype:
        """The dtype of the state of a parameter."""
        return real(p.detach()).dtype

    def _check_dtypes(self, error: RuntimeError) -> None:
        """An error of a step is explained if parameters have changed their dtype since their state was made."""
        for p in self._params():
            tensors = [v for v in self.state.get(p, {}).values() if isinstance(v, Tensor) and v.shape == p.shape != ()]
            kept = {v.dtype for v in tensors if v.is_floating_point()} - {self._kept_as(p)}
            if kept:
                raise RuntimeError(
                    f"{type(self).__name__}.step: parameters have become {p.dtype} since the optimizer's state was made in "
                    f"{kept.pop()}; make the optimizer after model.half(), model.double() or model.to(dtype)"
                ) from error

    # ---- checkpoints

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a checkpoint; if it does not fit, nothing changes."""
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"{CHECKPOINT}, got {type(state_dict).__name__}")
        # Runs after the user's own hooks.
        hook = self.register_load_state_dict_pre_hook(lambda _, given: self._accept(_whole(given)))
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
        """Check a checkpoint and store our part in `_incoming`; return the part for torch, or None for all of it."""
        raise NotImplementedError

    def _adopt(self, incoming: Any) -> None:
        """Take over what `_accept` has checked."""
        raise NotImplementedError

    # ---- training passes

    def _training_pass(self) -> AbstractContextManager[TrainingPass | None]:
        """A context that keeps the graph of a forward and backward pass if the coming step probes curvature."""
        raise NotImplementedError

    def _take(self, done: TrainingPass | None, points: int | None) -> None:
        """Add a training pass as a micro-batch of the coming step; `points` is its size, if known."""
        raise NotImplementedError

    @property
    def _micro_batches(self) -> int:
        """Micro-batches seen since the last step."""
        raise NotImplementedError

    @contextmanager
    def _watch(self, points: int | None) -> Iterator[None]:
        known = None if points is None else count(points, "points")
        self._outside_watch("watch")
        self._watching = True
        try:
            with self._training_pass() as done:
                yield
        finally:
            self._watching = False
        self._effect.passed(done)
        self._take(done, known)

    def _run(self, closure: Callable[[], Any], *, graph: bool = True) -> Any:
        """Run training's own forward and backward pass, watched unless the closure calls `observe` itself."""
        if self._micro_batches or self._watching:
            return closure()
        with self._training_pass() if graph else nullcontext() as done:
            loss = closure()
        if not self._micro_batches:
            self._effect.passed(done)
            self._take(done, None)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in torch. A batch that was observed without a step, because its gradient was not finite, is dropped."""
        if self._micro_batches and not (is_sharded(*self._params()) or finite(p.grad for p in self._params())):
            self._effect.stepped(self, not_finite(self.param_groups))
            self._drop()
        if self._micro_batches:
            self._effect.cleared()
        super().zero_grad(set_to_none)

    def _drop(self) -> None:
        """Forget the micro-batches seen since the last step: their gradient is not finite."""
        raise NotImplementedError

    def _outside_watch(self, name: str) -> None:
        """Refuse calls that would count a training pass twice, or miss it."""
        if self._watching:
            raise RuntimeError(
                f"{type(self).__name__}.{name}: a watch() is open; end its `with` block after backward, and call {name} below "
                "it. step(closure) needs no watch()"
            )
