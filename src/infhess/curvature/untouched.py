"""Evaluate a loss and leave nothing behind: buffers and random state are as before."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def untouched(params: Sequence[Tensor], seed: int) -> Iterator[None]:
    """Within: gradients on, random numbers from `seed`, attention that differentiates twice. After: all as before.

    The same seed gives the same dropout mask. Buffers are those of the modules that run; modules need not be known.
    """
    devices = sorted({p.device for p in params if p.device.type == "cuda"}, key=str)
    with (
        torch.random.fork_rng(devices=devices),
        torch.enable_grad(),
        sdpa_kernel(SDPBackend.MATH),  # the others have no double backward
        torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled and not devices),  # nor do its recurrent nets
        _eager(),
        _buffers_kept(),
    ):
        # Not torch.manual_seed: where CUDA is not in use it notes down a traceback at each call.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _eager() -> AbstractContextManager[object]:
    """Compiled models run as they were written, and so differentiate twice (since PyTorch 2.6)."""
    compiling = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    return torch.compiler.set_stance("force_eager") if compiling else nullcontext()


@contextmanager
def _buffers_kept() -> Iterator[None]:
    kept: dict[int, tuple[nn.Module, dict[str, tuple[Tensor, Tensor]]]] = {}

    def keep(module: nn.Module, _: object) -> None:
        if id(module) not in kept:
            buffers = {name: (b, b.detach().clone()) for name, b in module._buffers.items() if b is not None}
            kept[id(module)] = (module, buffers)

    handle = register_module_forward_pre_hook(keep)
    try:
        with warnings.catch_warnings():
            # A compiled module runs this hook twice, which does no harm.
            warnings.filterwarnings("ignore", message="Using `torch.compile")
            yield
    finally:
        handle.remove()
        for module, buffers in kept.values():
            for name, (buffer, before) in buffers.items():
                # .data: a graph that is kept for further products must not see a new version of the buffer.
                buffer.data.copy_(before)
                module._buffers[name] = buffer
