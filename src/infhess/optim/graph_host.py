"""Decisions on the host within a graph of `torch.compile`.

The rules read lengths as numbers and decide in Python. In a graph, each decision is an operator that the compiler does not look
into, so that nothing breaks the graph: tensors stay in it, scalars outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef

from infhess._checks import small_dtype
from infhess.curvature.flat import widened

_hosts: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = count()
# A recorded CUDA graph would not ask the host again. Older versions of PyTorch have no tag for this, and refuse to record.
_TAGS: dict[str, Any] = {"tags": torch.Tag.cudagraph_unsafe} if hasattr(torch.Tag, "cudagraph_unsafe") else {}


def host_op(name: str, schema: str, *mutates: str) -> Callable[[Callable[..., object]], CustomOpDef]:
    """Decorator: an operator that runs on the host, and changes the arguments of these names."""
    return torch.library.custom_op(f"infhess::{name}", schema=schema, mutates_args=mutates, **_TAGS)


def registered(host: Any) -> int:
    """The number by which graphs find their host."""
    number = next(_numbers)
    _hosts[number] = host
    return number


def host_of(number: int) -> Any:
    """The host with this number."""
    return _hosts[number]


@host_op("decide", "(int host, str decision, int rows, int columns, Tensor length) -> Tensor")
def decide(host: int, decision: str, rows: int, columns: int, length: Tensor) -> Tensor:
    """A table of numbers that a method of the host returns, given a length that tensors in the graph have."""
    return length.new_tensor(getattr(_hosts[host], decision)(float(length))).view(rows, columns)


@decide.register_fake
def _(host: int, decision: str, rows: int, columns: int, length: Tensor) -> Tensor:
    return length.new_empty(rows, columns)


def norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all tensors as one vector, on the device."""
    return together(torch._foreach_norm([widened(t) for t in tensors]))


def together(norms: Sequence[Tensor]) -> Tensor:
    """The norm of norms, in double precision where the device has it."""
    stacked = torch.stack(list(norms))
    found: Tensor = torch.linalg.vector_norm(stacked.to(small_dtype(stacked.device)))
    return found
