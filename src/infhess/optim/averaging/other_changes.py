"""Weights that something else than the optimizer has changed between its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import length, real, widened
from infhess.optim import sharded

# Weights that differ by more than this many roundings were changed.
ROUNDING = 16.0


def note_on_changes(
    groups: Sequence[dict[str, Any]], betas: Sequence[float], state: Mapping[Tensor, dict[str, Any]]
) -> tuple[str, ...]:
    """A note if weights are not (1 − β₁) z + β₁ x, with β₁ that of the last step: a schedule may have changed it since."""
    for group, beta in zip(groups, betas):
        for p in group["params"]:
            own = state.get(p, {})
            if own.get("step") and _differs(p, own, beta):
                return (
                    "weights were changed since the last step, by hand or in a forward pass, and the next step goes on from "
                    "the optimizer's own; instead of clamping weights after a step, do so in the forward pass "
                    "(torch.nn.utils.parametrize)",
                )
    return ()


def _differs(p: Tensor, own: dict[str, Any], beta: float) -> bool:
    w, z, x = (sharded.local(v) for v in (real(p.detach()), own["z"], own["averaged"]))
    y = torch.lerp(x, z, 1 - beta).to(w.dtype)
    return length([[widened(y - w)]]) > ROUNDING * torch.finfo(w.dtype).eps * length([[widened(y)]])
