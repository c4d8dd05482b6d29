"""How RateFree scales gradients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from infhess._checks import finite_number
from infhess.optim.scalings.diagonal import DiagonalScaling
from infhess.optim.scalings.gradient_scaling import GradientScaling
from infhess.optim.scalings.rotated import RotatedScaling

SCALINGS: dict[str, GradientScaling] = {scaling.name: scaling for scaling in (DiagonalScaling(), RotatedScaling())}


def checked_defaults(
    scaling: str, weight_decay: float | str | None, betas: Any, lr: float | Tensor, eps: float | None
) -> dict[str, Any]:
    """The defaults of a parameter group; options that are None come from the scaling."""
    if scaling not in SCALINGS:
        raise ValueError(f"scaling: expected one of {', '.join(SCALINGS)}; got {scaling!r}")
    chosen = SCALINGS[scaling]
    betas, eps = betas or (0.9, chosen.beta), chosen.eps if eps is None else eps
    if weight_decay in ("auto", None):
        weight_decay = None if chosen.rule.shrinkage else 0.0
    for name, value in (("weight_decay", weight_decay), ("lr", lr), ("eps", eps)):
        if value is not None:
            finite_number(value, name, least=0.0)
    if float(lr) != 1:
        warnings.warn(
            f"RateFree: lr={float(lr):g} multiplies the learning rate that curvature gives; pass lr=1 unless "
            "you mean that, also where a framework, a factory or a configuration sets it",
            stacklevel=3,
        )
    pair = isinstance(betas, Sequence) and len(betas) == 2
    if not pair or not all(0 <= finite_number(beta, "betas") < 1 for beta in betas):
        raise ValueError(f"betas: expected two numbers from 0 to below 1, got {betas}")
    return {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps, "scaling": scaling}
