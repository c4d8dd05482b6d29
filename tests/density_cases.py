"""How often the bounds of `density` hold, for eigenvalues that are known."""

from __future__ import annotations

import torch

from infhess import density
from util import F64


def step(values, x):
    return (values[None] <= x[:, None]).double().mean(1)


def places(values):
    """Even points within the range, and points at which every share of the eigenvalues lies below."""
    even = torch.linspace(float(values.min()), float(values.max()), 22, dtype=F64)[1:-1]
    return torch.cat([even, torch.quantile(values, torch.linspace(0.025, 0.975, 20, dtype=F64))])


def coverage(values, trials, **options):
    """Mean share of places that the intervals cover, and share of trials in which the joint band covers all."""
    x, hits, joint = places(values), [], []
    for seed in range(trials):
        # Gaussian starts see no difference between a matrix and its eigenvalues on a diagonal.
        found = density(torch.diag(values), generator=torch.Generator().manual_seed(seed), **options)
        for seen, band in ((hits, found.interval(x)), (joint, found.interval(x, joint=True))):
            seen.append((band[0] <= step(values, x)) & (step(values, x) <= band[1]))
    return float(torch.stack(hits).double().mean()), float(torch.stack(joint).all(1).double().mean())
