"""observe on raw features, from nn.Linear's own start: most points saturate, and hardly any curvature is left to see."""

from __future__ import annotations

import pytest
import torch

import infhess
from raw_features import CASES, optimum, raw


def trained(problem, seed, passes, size=32):
    """The loss over all the data after each pass."""
    opt = infhess.Preconditioned(torch.optim.SGD(problem.model.parameters(), lr=0.1))
    g, values = torch.Generator().manual_seed(seed), []
    for _ in range(passes):
        for i in torch.randperm(len(problem.x), generator=g).split(size):
            batch = problem.x[i], problem.y[i]
            opt.zero_grad()
            problem.loss(batch).backward()
            opt.observe(problem.loss, batch)
            opt.step()
        values.append(problem.value())
    return values


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_loss_stays_below_its_start_and_comes_near_the_optimum(case, seed):
    problem = raw(*case, seed)
    start = problem.value()
    values = trained(problem, seed, 60)
    assert max(values) < start
    assert values[-1] < min(start / 10, 10 * optimum(*case))


@pytest.mark.parametrize("seed", range(3))
def test_small_batches_end_far_below_their_start(seed):
    problem = raw("cancer", "binary", seed)
    start = problem.value()
    assert trained(problem, seed, 20, size=8)[-1] < min(start / 10, 10 * optimum("cancer", "binary"))
