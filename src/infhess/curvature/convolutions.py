"""Convolutions whose second derivatives use the fast kernels of the first ones, unlike PyTorch's own on a CPU.

A convolution y = B(x, w) is bilinear, with gradients B₁(dy, w) in x and B₂(dy, x) in w. Along (u, v) the second derivative
adds B(u, w) + B(x, v) to the cotangent of dy, B₁(dy, v) to that of x and B₂(dy, u) to that of w: two convolutions forward
and one backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
ATEN: Any = torch.ops.aten
Options = tuple[
    list[int], list[int], list[int], bool, list[int], int
]  # stride, padding, dilation, no transposition, …, groups


def convolve(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """The result of `torch.conv1d`, `conv2d` or `conv3d`; None if it should be left to PyTorch."""
    return _convolve(DIMENSIONS[func], *args, **kwargs)


def _convolve(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    if isinstance(padding, str) or not _plain(n, input, weight):
        return None
    options: Options = (_each(stride, n), _each(padding, n), _each(dilation, n), False, [0] * n, groups)
    found: Tensor = _Convolution.apply(input, weight, bias, options)  # type: ignore[no-untyped-call]
    return found


def _plain(n: int, x: Tensor, w: Tensor) -> bool:
    """Whether this is a batch of ordinary real tensors on a CPU, without transforms or autocast that must see the operation."""
    ordinary = x.ndim == n + 2 and all(t.layout == torch.strided and t.is_floating_point() for t in (x, w))
    around = torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled("cpu")
    return ordinary and x.device.type == w.device.type == "cpu" and not around and forward_ad._current_level < 0


def _each(value: int | Sequence[int], n: int) -> list[int]:
    """One number per dimension."""
    found = [value] if isinstance(value, int) else list(value)
    return found * n if len(found) == 1 else found


class _Convolution(Function):
    """B(x, w) + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, options: Options) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.options = options
        found: Tensor = ATEN.convolution(x, w, b, *options)
        return found

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        found = _Gradients.apply(dy, *ctx.saved_tensors, ctx.options, ctx.needs_input_grad[:3])  # type: ignore[no-untyped-call]
        return (*found, None)


class _Gradients(Function):
    """B₁(dy, w), B₂(dy, x) and the sum of dy over all dimensions except channels, as far as they are needed."""

    @staticmethod
    def forward(ctx: Any, dy: Tensor, x: Tensor, w: Tensor, options: Options, needed: Sequence[bool]) -> Any:
        ctx.save_for_backward(dy, x, w)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return ATEN.convolution_backward(dy, x, w, [len(w)], *options, needed)

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None, c: Tensor | None) -> Any:
        dy, x, w = ctx.saved_tensors
        pairs = [(a, b) for a, b in ((u, w), (x, v)) if a is not None and b is not None]
        terms = [ATEN.convolution(a, b, None if i else c, *ctx.options) for i, (a, b) in enumerate(pairs)]
        if not terms and c is not None:
            terms = [c.reshape(-1, *[1] * (dy.ndim - 2)).expand_as(dy)]
        needed = [ctx.needs_input_grad[1] and v is not None, ctx.needs_input_grad[2] and u is not None, False]
        dx, dw = None, None
        if any(needed):
            x, w = x if u is None else u, w if v is None else v
            dx, dw, _ = ATEN.convolution_backward(dy, x, w, None, *ctx.options, needed)
        return sum(terms[1:], terms[0]) if terms else None, dx, dw, None, None
