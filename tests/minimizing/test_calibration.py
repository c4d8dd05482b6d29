"""Whether the bound on the gap holds: over many runs it is at least the true gap in most passes, and not far above it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import median

import pytest
import torch

import infhess
from convex_cases import needs_data, small
from infhess.problems.convex_problems import breast_cancer, convex_problem, digits_softmax, logistic, poisson, softmax
from infhess.problems.convex_problems import squares as squares_loss
from minimizing_cases import batches_of

# Below this the reference and the loss in double precision agree in nothing but rounding.
FLOOR = 1e-11


def parts(problem, n, l2, seed):
    """The problem on n of its points, with another l2."""
    x, y = problem.data
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:n]
    return replace(problem, data=(x[chosen], y[chosen]), l2=l2, test=None)


def ends_of(problem):
    """The loss at the minimum and at the start."""
    return problem.value(problem.solved()), problem.value(problem.model())


def trials(problem, ends, batch, seed):
    """(bound, true gap) of each pass of a run that has a gap."""
    best, start = ends
    model, true = problem.model(), []
    result = infhess.minimize(
        problem.loss(model), model.parameters(), batches_of(problem, batch, seed), gap=1e-9, passes=40,
        callback=lambda row: true.append((problem.value(model) - best) / (start - best)),
    )  # fmt: skip
    rows = [(row, gap) for row, gap in zip(result.history, true) if row["gap"] == row["gap"] and not row["cut"]]
    return [(row["gap_upper"], gap) for row, gap in rows if gap > FLOOR]


def checked(found):
    assert sum(bound >= true for bound, true in found) >= 0.93 * len(found)
    assert median(bound / true for bound, true in found) <= 10


def pool_of(monkeypatch, points):
    """A pool of so many points at the most, of all the data where none is given."""
    monkeypatch.setattr("infhess.minimizing.choice.ALL", 0 if points else 10**9)
    monkeypatch.setattr("infhess.minimizing.choice.POOL_POINTS", points or 8192)


def test_the_bound_holds_on_small_problems(monkeypatch):
    cases = [
        small(squares_loss, n=1500),
        *(small(loss, k, n=1500) for loss, k in ((logistic, 1), (softmax, 4), (poisson, 1))),
    ]
    found = []
    for (i, problem), l2 in product(enumerate(cases), (1e-5, 1e-2)):
        part = parts(problem, 1500, l2, i)
        ends = ends_of(part)
        for points in (0, 200, 500):
            pool_of(monkeypatch, points)
            found += trials(part, ends, 32 if i % 2 else 256, i)
    assert len(found) > 100
    checked(found)


@pytest.mark.long
@needs_data
def test_the_bound_holds_over_two_hundred_runs(monkeypatch):
    """Five problems, l2 from 1e-6 to 1e-2, n from 500 on, pools of all the data, of half and of a quarter, batch 32 and 256."""
    problems = {
        "digits": (digits_softmax, (500, 1797)),
        "breast-cancer": (breast_cancer, (500, 569)),
        "mnist-3v5": (lambda: convex_problem("mnist-3v5"), (4000,)),
        "sarcos-nat": (lambda: convex_problem("sarcos-nat"), (2000, 20_000)),
        "sarcos-map": (lambda: convex_problem("sarcos-map"), (2000, 20_000)),
    }
    found, runs = [], 0
    for make, sizes in problems.values():
        problem = make()
        for n, l2 in product(sizes, (1e-6, 1e-4, 1e-2)):
            part = parts(problem, n, l2, runs)
            ends = ends_of(part)
            for share, batch in product((0, 2, 4), (32, 256)):
                pool_of(monkeypatch, n // share if share else 0)
                found += trials(part, ends, batch, runs)
                runs += 1
    for l2, seed in product((1e-6, 1e-5, 1e-4, 1e-3, 1e-2), range(3)):
        part = replace(generated(seed), l2=l2)
        ends = ends_of(part)
        for share in (0, 4, 16):
            pool_of(monkeypatch, 100_000 // share if share else 0)
            found += trials(part, ends, 256, seed)
            runs += 1
    assert runs >= 200
    checked(found)


def generated(seed):
    """Logistic regression of 100,000 points, 40 features with a condition of 1e4."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(100_000, 40, generator=g, dtype=torch.float64) * torch.logspace(0, -2, 40, dtype=torch.float64)
    y = torch.sign(x.sum(1) + torch.randn(100_000, generator=g, dtype=torch.float64))
    return replace(small(logistic), data=(x, y))
