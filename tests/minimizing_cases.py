"""Convex problems for `minimize`: batches, and the true gap of every pass from a dense reference in double precision."""

from __future__ import annotations

import torch

import infhess


def batches_of(problem, size, seed=0):
    """All the data in a random order, the last batch smaller."""
    x, y = problem.data
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return [(x[i], y[i]) for i in order.split(size)]


def minimized(problem, size=64, dtype=torch.float64, **options):
    """The model, the result, and the true gap at the end and after each pass."""
    best, start = problem.value(problem.solved()), problem.value(problem.model())
    model = problem.model().to(dtype)
    double = problem.model()

    def gap(*_):
        double.load_state_dict(model.state_dict())
        return (problem.value(double) - best) / (start - best)

    true = []
    batches = [tuple(t.to(dtype) if t.is_floating_point() else t for t in b) for b in batches_of(problem, size)]
    result = infhess.minimize(
        problem.loss(model), model.parameters(), batches, callback=lambda row: true.append(gap()), **options
    )
    return model, result, gap(), true
