"""Random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from infhess._checks import generator_on


def normal(*shape: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal draws in the dtype and on the device of `like`, from a generator on any device."""
    device = generator_on(generator) or like.device
    return torch.randn(*shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


def signs(*shape: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """±1 with equal probability, in the dtype and on the device of `like`."""
    device = generator_on(generator) or like.device
    bits = torch.randint(2, shape, generator=generator, dtype=like.dtype, device=device)
    return bits.mul_(2).sub_(1).to(like.device)
