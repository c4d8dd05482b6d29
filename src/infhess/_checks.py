"""Checks of input, with one-sentence messages: what was expected, what was given, what to do."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 1e153  # its square is still a double


def as_real(x: Any, name: str, like: Tensor | None = None) -> Tensor:
    """A detached float tensor from a tensor, a NumPy array or nested lists of floats."""
    if not isinstance(x, Tensor):
        try:
            # A copy: torch cannot share arrays with negative strides or read-only arrays.
            x = torch.as_tensor(x.copy() if type(x).__module__ == "numpy" else x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name}: expected a tensor or an array of floats, got {type(x).__name__}") from error
        if like is not None and x.is_floating_point():
            x = x.to(like)
    if x.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense tensor, got layout {x.layout}; convert it with .to_dense()")
    if not x.is_floating_point():
        remedy = "take its real and imaginary part apart" if x.is_complex() else "convert it with .to(torch.float64)"
        raise TypeError(f"{name}: expected a real floating-point dtype, got {x.dtype}; {remedy}")
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


def same_place(x: Tensor, y: Tensor, names: str) -> None:
    """Check that both tensors share their device and dtype."""
    if x.device != y.device:
        raise ValueError(f"{names}: expected one device, got {x.device} and {y.device}; move one with .to(device)")
    if x.is_meta:
        raise ValueError(f"{names}: expected numbers, got tensors on the meta device, which has none")
    if x.dtype != y.dtype:
        raise TypeError(f"{names}: expected one dtype, got {x.dtype} and {y.dtype}; convert one of them")


def finite_columns(X: Tensor, name: str) -> None:
    """Check that no column of X holds NaN or infinity; the message names the first observation that does."""
    bad = ~finite(X)
    if bool(bad.any()):
        raise ValueError(f"{name}: observation {int(bad.nonzero()[0])} holds NaN or infinity; leave it out or fix it")


def finite(X: Tensor) -> Tensor:
    """Whether each column (or the vector) is finite throughout.

    NaN and infinity survive a norm: one number per column instead of a test (and a copy) of every entry. The second test
    handles squares that overflow.
    """
    good = torch.isfinite(torch.linalg.vector_norm(X, dim=0))
    return good if bool(good.all()) else torch.isfinite(torch.linalg.vector_norm(X, ord=torch.inf, dim=0))


def column_norms(X: Tensor) -> Tensor:
    """The norm of each column, safe against underflow and overflow of the squares."""
    norms: Tensor = torch.linalg.vector_norm(X, dim=0)
    tiny, huge = torch.finfo(X.dtype).tiny ** 0.5, torch.finfo(X.dtype).max ** 0.5
    doubtful = ~((norms > tiny) & (norms < huge))
    if bool(doubtful.any()):
        top = torch.linalg.vector_norm(X, ord=torch.inf, dim=0)
        if bool((doubtful & (top > 0)).any()):  # otherwise these columns are zero, and no copy is made
            top = top.clamp(min=torch.finfo(X.dtype).tiny)
            norms = top * torch.linalg.vector_norm(X / top, dim=0)
    return norms


def finite_number(x: Any, name: str, *, least: float = -float("inf"), strict: bool = False) -> float:
    """A finite float, at least `least` (greater if strict)."""
    if isinstance(x, bool | str | bytes) or (isinstance(x, Tensor) and x.numel() != 1):
        raise TypeError(f"{name}: expected one number, got {shown(x)}")
    try:
        value = float(x.detach() if isinstance(x, Tensor) else x)
    except OverflowError:
        value = float("inf")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected one number, got {type(x).__name__}") from error
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"{name}: expected a finite number, got {value}")
    if value < least or (strict and value == least):
        raise ValueError(f"{name}: expected a number {'above' if strict else 'of at least'} {least:g}, got {value:g}")
    return value


def share(x: Any, name: str) -> float:
    """A number above 0 and below 1, of a whole: per cent are refused."""
    value = finite_number(x, name, least=0.0, strict=True)
    if value >= 1:
        raise ValueError(f"{name}: expected a number above 0 and below 1, got {value:g}; 0.1 means ten per cent")
    return value


def count(k: Any, name: str, most: int | None = None) -> int:
    """A whole number from 1 to `most`."""
    try:
        found = None if isinstance(k, bool) else operator.index(k)
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"{name}: expected a whole number, got {shown(k)}")
    if found < 1 or (most is not None and found > most):
        bound = "1 or more" if most is None else f"1 to {most}"
        raise ValueError(f"{name}: expected {bound}, got {shown(found)}")
    return int(found)


def shown(x: Any) -> str:
    """A value as it is written, if that is short; otherwise its type."""
    text = repr(x)
    return text if len(text) <= 60 and "\n" not in text else type(x).__name__


def callable_with(
    f: Any, name: str, arguments: Sequence[str], returns: str, remedy: str, *, modules: bool = True
) -> None:
    """Check that f can be called with these arguments, by its signature: an error in a call may be one of the user's own code.

    With `modules=False` a module is refused: it takes inputs, where f takes a batch.
    """
    if isinstance(f, nn.Module) and not modules:
        got: str | None = f"a module ({type(f).__name__})"
    elif callable(f):
        got = _misfit(f, arguments)
    else:
        got = type(f).__name__
    if got is not None:
        form = f"{name}({', '.join(arguments)}) -> {returns}"
        raise TypeError(f"{name}: expected a callable {form}, got {got}; {remedy}")


def _misfit(f: Any, arguments: Sequence[str]) -> str | None:
    """What f takes instead of these arguments; None if it takes them, or does not tell."""
    if isinstance(f, FunctionType) and f.__code__.co_argcount == len(arguments) and not f.__code__.co_kwonlyargcount:
        return None  # most functions, without the microseconds that a signature takes
    if isinstance(f, nn.Module):
        if f._forward_pre_hooks:  # they may alter the arguments
            return None
        f = f.forward
    try:
        # Not that of a function within a decorator, which may add arguments.
        signature = inspect.signature(f, follow_wrapped=False)
    except (TypeError, ValueError):  # built in
        return None
    try:
        signature.bind(*arguments)
    except TypeError:
        needed = [p.name for p in signature.parameters.values() if p.default is p.empty]
        return f"a function of ({', '.join(needed)})"
    return None


def generator_on(generator: Any) -> torch.device | None:
    """The device of a generator; None if none was given."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator: expected a torch.Generator or None, got {type(generator).__name__}")
    return None if generator is None else generator.device


def small_dtype(device: torch.device) -> torch.dtype:
    """The dtype of m×m problems: double if the device has it, whatever the dtype of the long columns."""
    return torch.float32 if device.type == "mps" else torch.float64


def rounding(dtype: torch.dtype, terms: int) -> float:
    """Relative size below which a sum of this many terms, or a singular value of such a matrix, is rounding error."""
    return 8 * max(terms, 1) * torch.finfo(dtype).eps
