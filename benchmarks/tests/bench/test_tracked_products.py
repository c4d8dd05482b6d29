"""What a tracker saves: both sides are measured at the same parameters, and the table shows them side by side."""

from __future__ import annotations

from infhess_bench.bench import tracked_products
from infhess_bench.bench.timed_nets import timed_net
from infhess_bench.bench.tracked_products import EXPERIMENT, FRESH, TRACKED
from infhess_bench.harness import Row


def test_a_net_that_hardly_moves_is_followed_by_fewer_products_at_the_same_width():
    before = [p.detach().clone() for p in timed_net("digits").params]
    tracked, fresh = tracked_products.followed(
        Row(EXPERIMENT, "digits, k = 1", f"η = 1e-05: {TRACKED}", 0, 64), 1e-5, 1, 3
    )
    assert tracked.loss == 2 / 3  # the first is fresh
    assert tracked.products < fresh.products / 1.2
    assert 0.5 < tracked.metric / fresh.metric < 2
    assert all((a == b).all() for a, b in zip(before, timed_net("digits").params))


def test_the_table_has_products_and_widths_of_both():
    rows = [
        Row(EXPERIMENT, "digits, k = 1", f"η = 0.1: {TRACKED}", products=100, metric=0.1, loss=0.5),
        Row(EXPERIMENT, "digits, k = 1", f"η = 0.1: {FRESH}", products=320, metric=0.2, loss=0.5),
    ]
    assert "| 10 steps, η = 0.1 | 50 % | 320 / 100 = 3.2 | 20.0 % | 10.0 % |" in tracked_products.summary(rows)
