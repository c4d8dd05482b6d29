"""`minimize` on the named problems, against their exact solutions."""

from __future__ import annotations

import pytest

import infhess
from bench_cases import needs_data
from infhess_bench.problems.convex_problems import convex_problem, solution
from minimizing_cases import batches_of


@needs_data
@pytest.mark.parametrize("size", [pytest.param(32, marks=pytest.mark.long), 256])
@pytest.mark.parametrize("name", ["sarcos-map", "sarcos-nat", "mnist-3v5", "digits", "breast-cancer"])
def test_the_problems_of_the_bench_to_eight_digits(name, size):
    problem = convex_problem(name)
    best, start = problem.value(solution(name)), problem.value(problem.model())
    model = problem.model()
    result = infhess.minimize(problem.loss(model), model.parameters(), batches_of(problem, size), gap=1e-8)
    assert result.stopped == "gap"
    assert (problem.value(model) - best) / (start - best) <= 1e-8
    assert result.passes <= 11
