"""Curvature along gradient descent: rows, the table and the figure."""

from __future__ import annotations

import torch

from infhess_bench.bench import edge_of_stability as edge
from util import randn


def test_rows_table_and_figure(tmp_path, monkeypatch):
    labels = torch.randint(10, (20,), generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(edge, "cifar10", lambda: (randn(20, 3, 32, 32, dtype=torch.float32), labels))
    name, case = next(iter(edge.CASES.items()))
    monkeypatch.setitem(edge.CASES, name, case._replace(images=20))
    monkeypatch.setattr(edge, "BATCH", 10)
    (job,) = edge.jobs(0, quick=True)
    rows = job.run()
    curve = edge.curves(rows)[name]["η = 0.05"]
    assert [edge.step(row) for row in curve["value"]] == [0, 10, 20]
    assert [len(curve[name]) for name in edge.NAMES] == [3, 3, 3, 3]
    assert all(low.metric <= v.metric <= high.metric for v, low, high in zip(*(curve[n] for n in edge.NAMES[:3])))
    assert curve["limit"][0].metric == 40.0
    assert "η = 0.05 | 40" in edge.summary(rows)
    assert "<svg" in edge.figure(rows, tmp_path / "edge.svg").read_text()


def test_the_net_of_the_paper_is_followed_at_full_width_too():
    widths = [job.arguments[0].width for job in edge.jobs(0)]
    assert widths == [0.1, 0.1, 1.0, 1.0]
