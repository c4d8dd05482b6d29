"""Reports as numbers by name, and the interval of a learning rate."""

from __future__ import annotations

import math

import pytest
import torch

from infhess.optim.reports import Rate, RateReport, Report


def test_a_report_as_numbers():
    values, std = torch.tensor([3.0, 1.0]), torch.tensor([0.5, math.nan])
    report = Report(values, std, 0.1, 4, 64, 2.0, ("a", "b"), 128)
    row = {"step": 0.1, "products": 4.0, "product_points": 128.0, "data_points": 64.0, "seconds": 2.0, "notes": 2.0}
    assert report.as_dict() == {**row, "value/1": 3.0, "std/1": 0.5, "value/2": 1.0}
    assert Report(values, std, 0.1, 4, 64, 2.0).product_points == 0
    known = Report(values[:0], std[:0], 0.1, 4, 64, 2.0, ("a", "b"), 128, 0.01)
    assert known.as_dict() == {**row, "step/std": 0.01}


def test_a_rate_is_normal_in_its_logarithm():
    low, high = Rate(2.0, 0.5).interval(0.9)
    assert (low, high) == pytest.approx((2 * math.exp(-1.6448536 / 4), 2 * math.exp(1.6448536 / 4)))
    assert Rate(2.0, 0.5).interval() == Rate(2.0, 0.5).interval(0.95)
    assert float(Rate(2.0, 0.5)) == 2.0


def test_a_probe_as_numbers():
    low, high = Rate(2.0, 0.5).interval(0.95)
    assert RateReport(Rate(2.0, 0.5), 3.0, 1, 16, 0.25, ("a",)).as_dict() == {
        "rate": 2.0, "rate/low": low, "rate/high": high, "rate/allowed": 3.0, "products": 1.0, "product_points": 16.0,
        "data_points": 0.0, "seconds": 0.25, "notes": 1.0,
    }  # fmt: skip
