"""minimize where Newton's own step is far too long: features of very different scales, from nn.Linear's own start."""

from __future__ import annotations

import pytest

import infhess
from raw_features import CASES, optimum, raw


def run(problem, **options):
    return infhess.minimize(problem.loss, problem.model.parameters(), problem.batches(), **options)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_optimum_is_reached_from_where_a_linear_model_starts(case, seed):
    problem, best = raw(*case, seed), optimum(*case)
    start = problem.value()
    result = run(problem, gap=1e-8)
    assert result.stopped == "gap"
    assert (problem.value() - best) / (start - best) <= 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_with_a_pool_smaller_than_the_data(seed, monkeypatch):
    monkeypatch.setattr("infhess.minimizing.choice.ALL", 0)
    monkeypatch.setattr("infhess.minimizing.choice.POOL_POINTS", 128)
    problem, best = raw("cancer", "binary", seed), optimum("cancer", "binary")
    start = problem.value()
    assert run(problem, gap=1e-8).stopped == "gap"
    assert (problem.value() - best) / (start - best) <= 1e-6


def test_a_run_that_is_cut_short_does_not_blame_rounding():
    problem = raw("cancer", "binary", 0)
    start = problem.value()
    result = run(problem, passes=9)
    assert result.stopped == "passes"
    assert problem.value() < start / 2
