"""A step in a graph of `torch.compile`: one operator that the compiler does not look into.

The rules read lengths as numbers and decide in Python, which would break the graph. The operator makes the ordinary step, so
results are the same bit for bit, also on steps that probe curvature.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

_optimizers: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = count()
_SCHEMA = "(int number, Tensor(a!)[] weights, Tensor?[] grads) -> ()"


def _ordinary() -> tuple[Any, Any]:
    """How PyTorch dispatches outside of operators, read in a thread where no mode is on."""
    get = torch._C._dispatch_tls_local_include_set, torch._C._dispatch_tls_local_exclude_set
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(get[0]).result(), thread.submit(get[1]).result()


_OUTSIDE = _ordinary()  # within an operator there is no autograd, which a curvature probe needs


def numbered(optimizer: torch.optim.Optimizer) -> int:
    """A number by which graphs find an optimizer."""
    number = next(_numbers)
    _optimizers[number] = optimizer
    return number


def graph_step(optimizer: Any, closure: Any = None) -> Any:
    """A step while the compiler traces; with a closure, or for sharded parameters, outside of the graph."""
    params = optimizer._params()
    if closure is not None or any(type(p) not in (torch.nn.Parameter, Tensor) for p in params):
        outside: Any = _disable_dynamo(type(optimizer).step)
        return outside(optimizer, closure)
    # `data` has a version of its own: autograd takes graphs through the weights for valid until the step changes them.
    _step(optimizer._number, [p.data for p in params], [p.grad for p in params])
    return None


# A recorded CUDA graph would not decide again.
@torch.library.custom_op("infhess::step", schema=_SCHEMA, mutates_args=("weights",), tags=(torch.Tag.cudagraph_unsafe,))
def _step(number: int, weights: list[Tensor], grads: list[Tensor | None]) -> None:
    """A step of the optimizer with this number. The compiler may pass copies of its parameters and gradients."""
    optimizer = _optimizers[number]
    params = optimizer._params()
    copies = [(p, w) for p, w in zip(params, weights) if p.data_ptr() != w.data_ptr()]
    before = [p.grad for p in params]
    with torch._C._ForceDispatchKeyGuard(*_OUTSIDE):
        try:
            for p, w in copies:
                p.data.copy_(w)
            for p, g in zip(params, grads):
                p.grad = g
            optimizer.step()
            for p, w in copies:
                w.copy_(p)
        finally:
            for p, g in zip(params, before):
                p.grad = g


@_step.register_fake
def _(number: int, weights: list[Tensor], grads: list[Tensor | None]) -> None:
    pass
