"""The pilot: hyper-parameters from first products, as printed."""

from __future__ import annotations

import torch

from infhess import Products
from infhess.pilot import paper_pilot
from util import close, randn, spectrum

N = 20
B = spectrum(torch.logspace(0, 1.5, N))


def test_the_papers_pilot_is_as_printed():
    gradients = [randn(N, seed=i) for i in range(4)]
    sources = iter(gradients)
    pilot = paper_pilot(Products(lambda s: B @ s, lambda: next(sources), N))
    g = torch.stack(gradients)
    sBs, sBBs = (g * (g @ B)).sum(), (g @ B).square().sum()
    close(1 / pilot.prior.mean, (sBs / sBBs).sqrt(), 1e-10)
    close(pilot.prior.scale, sBs / g.square().sum(), 1e-10)
    variance = (g.square().mean(0) - g.mean(0).square()).median()
    close(pilot.prior.noise, variance / g.square().sum(1).mean().sqrt(), 1e-10)
    close(pilot.gradient, g.mean(0), 1e-12)
