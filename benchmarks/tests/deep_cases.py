"""A small net for handwritten digits as a problem of the bench."""

from __future__ import annotations

from torch import nn

from infhess_bench.data import digits
from infhess_bench.problems.net_problems import NetProblem


def images():
    x, y = digits()
    x = x.flatten(1).float() / 16
    return (x[:600], y[:600]), (x[600:900], y[600:900])


def small(**options):
    settings = {"batch": 20, "steps": 40, **options}
    return NetProblem(
        lambda: nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10)), images, **settings
    )
