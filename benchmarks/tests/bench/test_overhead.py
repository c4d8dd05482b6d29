"""The bench of overhead: what is counted, and what its tables say."""

import pytest
import torch

from infhess.cli.rows import Row
from infhess_bench.bench import overhead

METHODS = {
    name: overhead.methods()[name] for name in ("SGD", overhead.UNIT, "infhess.RateFree", "infhess.RateFree, kronecker")
}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(overhead, "WARM", 5)
    monkeypatch.setattr(overhead, "ROUNDS", 2)
    monkeypatch.setattr(overhead, "STEPS", 3)


def test_rows_have_a_ratio_to_adam_and_the_tables_name_every_target(small):
    problem = "4 small tensors"
    rows = overhead.overhead_rows(Row(overhead.EXPERIMENT, problem, overhead.UNIT), 0.01)
    known = {row.method: row for row in rows}
    assert known[overhead.UNIT].metric == 1
    assert known["infhess.RateFree"].seconds > 0
    assert {"schedule-free AdamW", "SGD", "infhess.Preconditioned(SGD)"} <= set(known)
    text = overhead.summary(rows)
    assert "memory passes, RateFree / schedule-free AdamW" in text
    assert len(overhead.targets(rows)) == (6 if "SOAP" in known else 4)


def test_passes_are_numbers_read_and_written_a_parameter():
    setting = overhead.settings(0.01)["4 tensors of 2 million"]()
    # w += −lr g reads both and writes one
    assert overhead.memory_passes(overhead.Runner(setting, METHODS["SGD"])) == pytest.approx(3, abs=0.01)
    with overhead._Passes() as passes:
        x = torch.ones(10)  # written
        x.view(5, 2)  # neither
        x + x  # one tensor read, one written
        torch.add(x, 1, out=x)  # read and written
    assert passes.numbers == 10 + 20 + 20
