"""Accelerate: access to the optimizer's own attributes through the wrapper that `prepare` returns."""

from __future__ import annotations

from typing import Any

from accelerate.optimizer import AcceleratedOptimizer

from infhess.integrations.training_run import unwrap as unwrap

__all__ = ["reachable", "unwrap"]


class ReachableOptimizer(AcceleratedOptimizer):  # type: ignore[misc]
    """Accelerate's wrapper; attributes that it lacks are read from, and written to, the optimizer inside."""

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # there is none yet, as during copying
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("optimizer")
        theirs = name in self.__dict__ or hasattr(AcceleratedOptimizer, name) or not hasattr(inner, name)
        object.__setattr__(self if theirs else inner, name, value)


def reachable(prepared: AcceleratedOptimizer) -> Any:
    """The wrapper from `accelerator.prepare`, now with `watch`, `observe`, `averaged`, `rate`, `report` and so on.

    `opt = reachable(accelerator.prepare(infhess.RateFree(model.parameters())))`; examples/accelerate_loop.py is a full script.
    Accelerate's own class, which has none of these attributes, is not changed: only this wrapper gets them.
    """
    if not isinstance(prepared, AcceleratedOptimizer):
        raise TypeError(
            f"reachable: expected what accelerator.prepare(optimizer) gives, got {type(prepared).__name__}; a bare optimizer "
            "has its attributes itself"
        )
    prepared.__class__ = ReachableOptimizer
    return prepared
