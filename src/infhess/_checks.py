"""Checks of input, each one sentence: what was expected, what came, what to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_real(x: Any, name: str, like: Tensor | None = None) -> Tensor:
    """A detached float tensor from a tensor, a NumPy array or nested lists of floats."""
    if not isinstance(x, Tensor):
        try:
            x = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name}: expected a tensor or an array of floats, got {type(x).__name__}") from error
        if like is not None and x.is_floating_point():
            x = x.to(like)
    if not x.is_floating_point():
        raise TypeError(
            f"{name}: expected a real floating-point dtype, got {x.dtype}; convert it with .to(torch.float64)"
        )
    real: Tensor = x.detach()
    return real


def as_vectors(x: Any, name: str, size: int, like: Tensor) -> Tensor:
    """A vector (size,) or a block (size, k), on the device and in the dtype of `like`."""
    v = as_real(x, name, like)
    if v.ndim not in (1, 2) or v.shape[0] != size:
        raise ValueError(f"{name}: expected shape ({size},) or ({size}, k), got {tuple(v.shape)}")
    if v.device != like.device:
        raise ValueError(f"{name}: is on {v.device}, but the operator is on {like.device}; move one with .to(device)")
    return v.to(like.dtype)


def same_place(S: Tensor, Y: Tensor) -> None:
    """S and Y share their device and dtype."""
    if S.device != Y.device:
        raise ValueError(f"S is on {S.device} and Y on {Y.device}; move one with .to(device)")
    if S.dtype != Y.dtype:
        raise TypeError(f"S has dtype {S.dtype} and Y {Y.dtype}; convert one of them")


def finite_columns(X: Tensor, name: str) -> None:
    """No column of X holds NaN or infinity; the message names the first observation that does."""
    # NaN and infinity survive a norm: one number a column instead of a test (and a copy) of every entry. The second
    # look is for squares that overflow.
    if bool(torch.isfinite(torch.linalg.vector_norm(X, dim=0)).all()):
        return
    bad = ~torch.isfinite(torch.linalg.vector_norm(X, ord=torch.inf, dim=0))
    if bool(bad.any()):
        raise ValueError(f"{name}: observation {int(bad.nonzero()[0])} holds NaN or infinity; leave it out or mend it")


def finite_number(x: Any, name: str, *, least: float = -float("inf"), strict: bool = False) -> float:
    """A finite float not below `least` (above it where strict)."""
    if isinstance(x, bool) or (isinstance(x, Tensor) and x.numel() != 1):
        raise TypeError(f"{name}: expected one number, got {x!r}")
    try:
        value = float(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: expected one number, got {type(x).__name__}") from error
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    if value < least or (strict and value == least):
        raise ValueError(f"{name}: expected a number {'above' if strict else 'of at least'} {least:g}, got {value:g}")
    return value


def count(k: Any, name: str, most: int | None = None) -> int:
    """A whole number from 1 to `most`."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"{name}: expected a whole number, got {k!r}")
    if k < 1 or (most is not None and k > most):
        bound = "1 or more" if most is None else f"1 to {most}"
        raise ValueError(f"{name}: expected {bound}, got {k}")
    return k


def small_dtype(device: torch.device) -> torch.dtype:
    """The dtype of m×m problems: double, whatever the dtype of the long columns, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64
