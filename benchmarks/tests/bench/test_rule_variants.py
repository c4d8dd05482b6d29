"""Variants of the learning-rate rule: each changes what it says, and the table has their ends."""

import math
from dataclasses import replace

import torch

from infhess.optim.rate.settings import KRONECKER
from infhess_bench.bench.deep_baselines import ROTATED
from infhess_bench.bench.deep_bench import Selection
from infhess_bench.bench.rule_variants import EXPERIMENT, VARIANTS, jobs, summary, varied
from infhess_bench.harness import ACCURACY, Row
from infhess_bench.problems.net_sets import net_problem
from infhess_bench.problems.shuffled import CountedStream, Shuffled


def test_a_variant_changes_one_constant_or_one_option(tiny):
    def optimizer(title):
        problem = net_problem(tiny)
        stream = CountedStream(Shuffled(problem.data, 8, torch.Generator()), 100)
        return varied(float(list(VARIANTS).index(title)))(problem, stream).optimizer

    assert optimizer("half σ")._rate_state.rule == replace(KRONECKER, sigma=KRONECKER.sigma / 2)
    assert optimizer("σ falls with no noise")._rate_state.rule == replace(KRONECKER, noisy_steps=math.inf)
    assert optimizer("weight decay .1").param_groups[0]["weight_decay"] == 0.1
    assert optimizer("as it is")._rate_state.rule == KRONECKER


def test_every_variant_is_run_on_every_problem():
    found = list(jobs(Selection(["mnist-cnn", "mnist-mlp"], seeds=[0, 1])))
    assert len(found) == 2 * 2 * len(VARIANTS)


def test_the_table_has_means_over_seeds():
    name = f"{ROTATED}: as it is"
    rows = [Row(EXPERIMENT, "mnist-cnn", name, seed, 64, loss=0.1 + 0.2 * seed, metric=1.0) for seed in (0, 1)]
    rows += [Row(EXPERIMENT, "mnist-cnn", name + ACCURACY, seed, 64, loss=1.0, metric=0.5) for seed in (0, 1)]
    assert "| as it is | 0.2 (1, 50.0%) |" in summary(rows)
