"""Curvature probes of the coming step, each along Dg with D and g as that step will have them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import real
from infhess.optim import sharded
from infhess.optim.rate.difference_probe import DifferenceProbe
from infhess.optim.rate.live import plain
from infhess.optim.rate.probe import Probe, Reading
from infhess.optim.rate.rate_state import RateState
from infhess.optim.scalings.scaler import Scaler


def read(
    probe: Probe | DifferenceProbe, groups: list[dict[str, Any]], scaler: Scaler, rate_state: RateState
) -> Reading:
    """A probe along Dg, with what `.grad` holds."""
    g, params = gradient_of(probe, scaler), probe.params
    numbers = sum(real(p.detach()).numel() for p in params)
    rate_state.measure(sharded.length_of([(g, params)]) / max(numbers, 1) ** 0.5)
    found = {p: (group["betas"][1], rate_state.epsilon(group["eps"])) for group in groups for p in group["params"]}
    options = [found[p] for p in params]

    def scaled(i: int, x: Tensor) -> Tensor:
        return scaler.ahead(params[i], *options[i], g[i], x)

    def form(i: int, x: Tensor, y: Tensor) -> float:
        return scaler.form(params[i], *options[i], g[i], x, y)

    return probe.read(g, scaled, form) if isinstance(probe, Probe) else probe.read(g, scaled)


def gradient_of(probe: Probe | DifferenceProbe, scaler: Scaler) -> list[Tensor]:
    """What `.grad` holds of each probed parameter; the batch's own gradient before there is any."""
    if isinstance(probe, Probe) and all(p.grad is None for p in probe.params):
        return probe.own()
    here = [sharded.local(scaler.state[p]["z"]) for p in probe.params]
    return [torch.zeros_like(z) if p.grad is None else plain(p) for p, z in zip(probe.params, here)]
