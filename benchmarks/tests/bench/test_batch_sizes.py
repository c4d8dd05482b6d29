"""Batch sizes at equal data."""

from __future__ import annotations

from infhess.cli.rows import Row
from infhess_bench.bench import batch_sizes
from infhess_bench.bench.batch_sizes import EXPERIMENT, jobs, summary, title
from infhess_bench.bench.deep_baselines import COSINE
from infhess_bench.bench.deep_bench import Selection


def test_every_size_reads_the_same_data(tiny, monkeypatch):
    monkeypatch.setattr(batch_sizes, "SIZES", (10, 40))
    found = list(jobs(Selection([tiny], [0])))
    assert len(found) == 2 * (3 + 3)
    ends = [row for job in found if job.template.method in (title(2.0), f"{COSINE}, 0.01") for row in job.run()]
    assert [row.data_points for row in ends if COSINE in row.method] == [800, 800]
    assert all(row.data_points + 2.5 * row.products * row.batch_size >= 800 for row in ends)


def test_the_table_says_where_the_rule_is_right():
    rows = [
        Row(EXPERIMENT, "tiny", method, 0, size, loss=loss, metric=1.0)
        for size, losses in ((16, (1.0, 1.05, 2.0)), (64, (1.0, 1.2, 2.0)))
        for method, loss in zip((*map(title, (0.5, 1.0, 2.0)), f"{COSINE}, 0.1"), (*losses, 3.0))
    ]
    text = summary(rows)
    assert "| tiny, 16 | 1 (1) | 1.05 (1) | 2 (1) | 3 (1) |" in text
    assert "share | 0.5 | ≥ 0.9 | no |" in text
