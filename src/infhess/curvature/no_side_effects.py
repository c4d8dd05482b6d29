"""Evaluate a loss without side effects: buffers, hooks and random state are restored."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from infhess.curvature.random_state import RandomState


@dataclass
class ForwardTrace:
    """What was seen of a loss: whether it draws random numbers, points of a batch share statistics, or modules ran."""

    random: bool = False
    batch_statistics: bool = False
    modules: bool = False
    state: bool = False  # modules that ran have buffers, or weights that are renormalised in the forward pass
    norms: list[_BatchNorm] = field(default_factory=list)  # BatchNorm layers that ran, in any mode


@contextmanager
def no_side_effects(params: Sequence[Tensor], seed: int, *, stateless: bool = False) -> Iterator[ForwardTrace]:
    """Within: gradients on, random numbers from `seed`, twice differentiable operations. After: everything is restored.

    The same seed gives the same dropout mask. Buffers are those of modules that run; modules need not be known in advance.
    `stateless`: the modules are known to have none, so nothing is checked.
    """
    trace = ForwardTrace()
    with (
        _seeded(params, seed, trace),
        torch.enable_grad(),
        twice_differentiable(params),
        _parameter_hooks_off(params),
        nullcontext() if stateless else _modules_kept(trace),
    ):
        yield trace


@contextmanager
def _seeded(params: Sequence[Tensor], seed: int, trace: ForwardTrace) -> Iterator[None]:
    """Within: random numbers from `seed`; `trace` records whether any were drawn. After: the random state is restored."""
    before = RandomState(params)
    try:
        before.seed(seed)
        seeded = RandomState(params)
        yield
        trace.random = not seeded.same(RandomState(params))
    finally:
        before.restore()


_inside = threading.local()  # .on: this thread is within `twice_differentiable`


@contextmanager
def twice_differentiable(params: Sequence[Tensor]) -> Iterator[None]:
    """Within: attention in plain form, no cuDNN, compiled models run eagerly; the faster variants have no double backward.

    Enter it once around many passes: nested contexts cost nothing.
    """
    if getattr(_inside, "on", False):
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(p.is_cuda for p in params):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(_eager())
        _inside.on = True
        stack.callback(setattr, _inside, "on", False)
        yield


@contextmanager
def repeated(random_state: RandomState, params: Sequence[Tensor]) -> Iterator[None]:
    """Within: random numbers are repeated from `random_state`. After: buffers and random state are restored."""
    before = RandomState(params)
    try:
        with torch.enable_grad(), _modules_kept(ForwardTrace()):
            random_state.restore()
            yield
    finally:
        before.restore()


@contextmanager
def backward_alone(params: Sequence[Tensor]) -> Iterator[ForwardTrace]:
    """For a backward pass that runs no module and draws no random number: nothing else has to be restored."""
    with torch.enable_grad(), _parameter_hooks_off(params):
        yield ForwardTrace()


class TwiceDifferentiable(TorchFunctionMode):
    """Replaces operations whose double backward is wrong by equivalent ones whose double backward is right.

    `torch._weight_norm` gives wrong second derivatives (21 to 41 % off finite differences in PyTorch 2.13).
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """v g / |v| from elementary operations; everything else unchanged."""
        return self.call(func, args, kwargs or {})

    @staticmethod
    def call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The operation, or a twice differentiable replacement."""
        if func is torch._weight_norm:
            v, g, dim = (*args, 0)[:3]
            return v * (g / torch.norm_except_dim(v, 2, kwargs.get("dim", dim)))
        return func(*args, **kwargs)


class Coarsest(TorchFunctionMode):
    """The largest eps among the dtypes that gradients pass through, including those of autocast."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unchanged, and record its dtype."""
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else (result,):
            if isinstance(value, Tensor) and value.requires_grad:
                self.eps = max(self.eps, torch.finfo(value.dtype).eps)
        return result


def _eager() -> AbstractContextManager[object]:
    """Compiled models run eagerly, and so can be differentiated twice (since PyTorch 2.6)."""
    compiling = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    return torch.compiler.set_stance("force_eager") if compiling else nullcontext()


@contextmanager
def _parameter_hooks_off(params: Sequence[Tensor]) -> Iterator[None]:
    """Turn off hooks on parameters, e.g. for clipping: they are meant for training's gradients, not for curvature."""
    hooked = [(p._backward_hooks, dict(p._backward_hooks)) for p in params if p._backward_hooks]
    for live, _ in hooked:
        live.clear()
    try:
        yield
    finally:
        for live, before in hooked:
            live.update(before)


@contextmanager
def _modules_kept(trace: ForwardTrace) -> Iterator[None]:
    """Restore the buffers of every module that runs and of its children, and weights that a forward pass renormalises."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    buffers: list[tuple[nn.Module, dict[str, Tensor | None]]] = []  # a forward pass may replace buffers
    seen: set[int] = set()

    def keep(module: nn.Module, _: object) -> None:
        trace.modules = True
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module not in trace.norms:
            trace.norms.append(module)
        if id(module) in seen:
            return
        for child in module.modules():
            if id(child) in seen:
                continue
            seen.add(id(child))
            trace.batch_statistics |= isinstance(child, _BatchNorm) and child.training
            buffers.append((child, dict(child._buffers)))
            changing = [b for b in child._buffers.values() if b is not None]
            if getattr(child, "max_norm", None) is not None:
                changing += [p for _, p in child.named_parameters(recurse=False)]
            # Class weights of torch's losses are buffers too; if not given, they stay None.
            trace.state |= bool(changing or (child._buffers and not isinstance(child, _Loss)))
            kept.update({id(t): (t, t.detach().clone()) for t in changing})

    handle = register_module_forward_pre_hook(keep)
    try:
        with warnings.catch_warnings():
            # A compiled module runs this hook twice, which is harmless.
            warnings.filterwarnings("ignore", message="Using `torch.compile")
            yield
    finally:
        handle.remove()
        for module, named in buffers:
            module._buffers.update(named)
        for tensor, before in kept.values():
            # .data: a graph kept for further products must not see a new version of the buffer.
            tensor.data.copy_(before)
