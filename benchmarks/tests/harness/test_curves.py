"""Curves: gaps, medians, thinning; and the rate that tuning picks."""

from __future__ import annotations

import pytest

from infhess.cli.rows import Row
from infhess_bench.experiments import regression
from infhess_bench.harness.comparison import best_settings
from infhess_bench.harness.curves import EXACT, START, Curves, shown, thin
from infhess_bench.harness.methods import Setting


def test_curves_know_gaps_and_medians():
    ends = [Row("e", "p", EXACT, loss=1.0), Row("e", "p", START, loss=11.0)]
    runs = [
        Row("e", "p", "m", seed, 8, points, loss=loss)
        for seed, losses in enumerate(((6.0, 2.0), (11.0, 1.5), (40.0, float("inf"))))
        for points, loss in zip((100, 200), losses)
    ]
    curves = Curves([*ends, *runs])
    assert curves.final("p", "m", 8) == pytest.approx(0.1)
    assert curves.points_to("p", "m", 8, 0.1) == 200
    assert curves.points_to("p", "m", 8, 0.01) == float("inf")
    assert (shown(float("inf")), shown(float("nan")), shown(12345.0), shown(2.34e5)) == (
        "never", "not run", "12,345", "2.3e5",
    )  # fmt: skip


def test_tuning_picks_the_rate_that_ended_lowest():
    tried = [
        Row("e", "p", f"{regression.SGD}: {rate}{suffix}", 1000, 8, 10, loss=loss)
        for rate, suffix, loss in (
            (0.1, "", 3.0), (0.1, ", averaged", 2.0), (1.0, "", float("inf")), (0.01, ", averaged", 2.5),
        )
    ]  # fmt: skip
    found = best_settings(tried, lambda r: r.loss)
    assert found == {f"p/8/{regression.SGD}": Setting(0.1, ", averaged")}


def test_thinned_runs_keep_the_first_row_at_each_gap_and_the_last():
    rows = [Row("e", "p", "m", data_points=n, loss=1.0 / n) for n in range(1, 2001)]
    kept = list(thin(rows, 0.0, 1.0))
    assert {10, 100, 1000, 2000} <= {r.data_points for r in kept}
    assert len(kept) < 60
