"""What a loss is: a callable that takes a batch, and returns a scalar tensor that depends on the parameters."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from torch import Tensor

from infhess._checks import callable_with, generator_on


def check_loss(loss: Any, products: str = "exact", generator: Any = None) -> None:
    """Check what the curvature of a loss is computed with, before anything is."""
    remedy = "write lambda batch: criterion(model(batch[0]), batch[1])"
    callable_with(loss, "loss", ["batch"], "scalar", remedy, modules=False)
    if products not in ("exact", "difference"):
        raise ValueError(f'products: expected "exact" or "difference", got {products!r}')
    generator_on(generator)


def scalar(value: Any) -> Tensor:
    """Check that the loss is a finite scalar tensor that depends on something."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        raise TypeError(f"loss: expected a scalar tensor for a batch, got {_instead(value)}")
    if not value.requires_grad:
        raise ValueError(
            "loss: it does not depend on any parameter; does it detach, or run under no_grad or inference_mode?"
        )
    if not math.isfinite(found := float(value.detach())):
        raise ValueError(f"loss: expected a finite number for a batch, got {found}; curvature is not defined there")
    return value if value.ndim == 0 else value.reshape(())


def _instead(value: Any) -> str:
    """What came instead of a scalar tensor, and what to return."""
    if not isinstance(value, Tensor):
        number = isinstance(value, Number)
        remedy = "the tensor itself, without .item()" if number else "the mean loss of the batch as a tensor"
        return f"{type(value).__name__}; return {remedy}"
    if value.numel() != 1:
        return f'shape {tuple(value.shape)}; take the mean over the batch: loss.mean(), or reduction="mean"'
    return f"dtype {value.dtype}; return the mean loss in a real floating-point dtype"
