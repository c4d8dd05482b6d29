"""Training runs: counting to the point, seeds, divergence; baselines against exact solutions."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bench_cases import Counting, small
from infhess.cli.rows import Row
from infhess_bench.experiments import logistic
from infhess_bench.experiments.regression import AverageInverse, NoisyConjugateGradients
from infhess_bench.harness.methods import online, paper, sgd, updated
from infhess_bench.harness.training import curve


@pytest.mark.parametrize(
    "method",
    [
        sgd(1e-3),
        paper(1e-4),
        updated(rank=8),
        online(),
        logistic.induced(1e-4),
        AverageInverse,
        NoisyConjugateGradients,
    ],
    ids=["sgd", "paper", "update", "observe", "induced", "avg-inv", "cg"],
)
def test_rows_count_what_was_read_to_the_point(method, monkeypatch):
    monkeypatch.setattr("infhess_bench.harness.training.Shuffled", Counting)
    Counting.read = 0
    rows = curve(small(), method, Row("e", "p", "m", 3, 16), 3000)
    assert rows[-1].data_points == Counting.read
    assert rows[-1].data_points >= 3000
    assert all(a.data_points <= b.data_points for a, b in pairwise(rows))


def test_the_same_seed_gives_the_same_numbers():
    first, second, other = (
        [(r.data_points, r.loss) for r in curve(small(), online(), Row("e", "p", "m", seed, 16), 2000)]
        for seed in (0, 0, 1)
    )
    assert first == second != other


def test_a_diverging_run_ends_and_says_so():
    rows = curve(small(), sgd(1e3), Row("e", "p", "m", 0, 16), 10**9)
    assert rows[-1].loss > 1e3 * small().value(small().model())
    assert rows[-1].data_points < 10**6


def test_averaged_inverses_of_the_whole_data_are_the_solution():
    problem = small()
    rows = curve(problem, AverageInverse, Row("e", "p", "m", 0, 300), 300)
    assert rows[-1].loss == pytest.approx(problem.value(problem.solved()), rel=1e-10)


def test_cg_on_exact_products_ends_after_as_many_steps_as_weights():
    problem = small()
    rows = curve(problem, NoisyConjugateGradients, Row("e", "p", "m", 0, 300), 300 * 20)
    assert rows[-1].loss == pytest.approx(problem.value(problem.solved()), rel=1e-8)
