"""Transformers of a size: what is measured, and in how much memory."""

from __future__ import annotations

import torch

from infhess_bench.bench import large_nets
from infhess_bench.bench.large_nets import EXPERIMENT, MEMORY, SECONDS, Case
from infhess_bench.harness import Row


def test_a_case_is_timed_and_weighed(monkeypatch):
    monkeypatch.setitem(large_nets.SIZES, 100_000, (8, 1))
    threads = torch.get_num_threads()
    found = large_nets.run(Case(100_000, points=16, memory=2**18), 0)
    assert found["stated"] <= 2**18
    assert found["products"] >= 64
    assert found["value"] > 0
    assert torch.get_num_threads() == threads


def test_bfloat16_products_are_those_of_single_precision_to_a_percent(monkeypatch):
    monkeypatch.setitem(large_nets.SIZES, 100_000, (8, 1))
    single, half = (large_nets.source_of(Case(100_000, bfloat16=b), 0) for b in (False, True))
    s = torch.ones(single.size)
    a, b = single.matvec(s), half.matvec(s)
    assert a.dtype == b.dtype == torch.float32
    assert 0 < float((a - b).norm() / a.norm()) < 0.05


def test_the_sizes_are_what_they_say():
    for weights in (100_000, 1_000_000):
        assert 0.8 < large_nets.source_of(Case(weights), 0).size / weights < 1.3


def test_the_summary_has_a_line_a_case():
    names = (SECONDS, MEMORY, "largest", "half of its 95 % interval / value")
    rows = [Row(EXPERIMENT, Case().name, name, products=64, seconds=2.0, metric=0.5) for name in names]
    text = large_nets.summary(rows)
    assert "1e+06 weights, 64 points a direction, k = 1 | 64 | 2.0 | 0.50 | 0.5 ± 50%" in text
    assert [job.template.problem for job in large_nets.jobs(0, quick=True)] == [
        c.name for c in large_nets.cases(quick=True)
    ]
