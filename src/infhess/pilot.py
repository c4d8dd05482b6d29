"""Hyper-parameters of the paper's prior, from a few initial gradients and products."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from infhess.curvature import Source
from infhess.posterior import Isotropic


class Pilot(NamedTuple):
    """The prior suggested by the first batches, and their mean gradient."""

    prior: Isotropic
    gradient: Tensor


def paper_pilot(source: Source, batches: int = 4) -> Pilot:
    """b0, w0, λ0 as in section 2.3.1 of de Roos & Hennig 2019, from gradients s of a few batches.

    1/b0 = √(sᵀBs / sᵀBBs), w0 = sᵀBs / sᵀs, with sums over the batches in numerator and denominator, and
    λ0 = median over parameters of Var(g), divided by √(sᵀs).

    Kept as printed: λ0 has the units of a gradient and b0 is not invariant to the scale of the loss, see
    docs/how-it-works/errata.md. The magnitude of sᵀBs is taken: a direction of negative curvature has no root.
    """
    gradients, sBs, sBBs, ss = _looks(source, batches)
    g = torch.stack(gradients)
    variance = g.var(dim=0, correction=0).median()
    noise = float(variance) / (ss / batches) ** 0.5
    return Pilot(Isotropic(mean=(sBBs / sBs) ** 0.5, scale=sBs / ss, noise=noise), g.mean(dim=0))


def paper_layer_pilot(source: Source, batches: int = 10) -> Pilot:
    """b0, w0, λ0 of the deep-learning variant, section 2.5 of de Roos & Hennig 2019, shared by all layers.

    1/b0 = sᵀBs / sᵀBBs, the smaller step, and λ0 = √((Σ gᵀg − ĝᵀĝ/n)/n) with ĝ = Σ g over n batches. The 1/n of the second
    term is missing in print, where the root is of a negative number. The absolute value of sᵀBs is used.
    """
    gradients, sBs, sBBs, ss = _looks(source, batches)
    mean = sum(gradients[1:], gradients[0]) / batches
    noise = max(0.0, ss / batches - float(mean @ mean)) ** 0.5
    return Pilot(Isotropic(mean=sBBs / sBs, scale=sBs / ss, noise=noise), mean)


def _looks(source: Source, batches: int) -> tuple[list[Tensor], float, float, float]:
    """Gradients s of a few batches, and |Σ sᵀBs|, Σ sᵀBBs, Σ sᵀs."""
    gradients, sBs, sBBs, ss = [], 0.0, 0.0, 0.0
    for _ in range(batches):
        s, Bs = source.gradient_and_product()
        gradients.append(s)
        sBs, sBBs, ss = sBs + float(s @ Bs), sBBs + float(Bs @ Bs), ss + float(s @ s)
    if not (0 < sBBs < float("inf") and abs(sBs) > 0 and 0 < ss < float("inf")):
        raise ValueError(
            f"pilot: expected finite gradients with curvature, got sᵀs = {ss:g}, sᵀBs = {sBs:g}, sᵀBBs = {sBBs:g}; "
            "is the loss flat or not finite here?"
        )
    return gradients, abs(sBs), sBBs, ss
