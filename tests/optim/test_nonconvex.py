"""The controller for nets against its definition: the rate, its bounds and every step, around sgd and around Adam."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import infhess
from observing import drive
from util import F64, close, randn

PROBES = {1, 2, 3, 4, 8, 16, 32, 64, 128, 208, 288}


class Adam:
    """D of the coming step, the direction that it scales, and the step."""

    def __init__(self):
        self.m = self.v = 0.0

    def see(self, g, t):
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g**2
        return 1 / ((self.v / (1 - 0.999**t)).sqrt() + 1e-8), self.m / (1 - 0.9**t)


class Plain:
    def see(self, g, t):
        return torch.ones_like(g), g


def reference(w, center, curvatures, adaptive):
    """Iterates and rates on ½ c |w − center|², c by step: the filtered log √(gᵀDg/hᵀDh), growth and bounds."""
    base = Adam() if adaptive else Plain()
    turn = 0.3 if adaptive else 0.7
    X = P = rate = longest = None
    slow, shrinking, size, most, found = False, 0.0, None, 0.0, []
    for t, c in enumerate(curvatures, 1):
        before, size = size, float(w.norm())
        if t > 1:
            shrinking += 0.1 * (math.log(before / size) / rate - shrinking)
        g = c * (w - center)
        D, m = base.see(g, t)
        if t in PROBES:
            h = c * D * g
            seen, most = 0.5 * math.log(float(g @ (D * g)) / float(h @ (D * h))), max(most, float(g.norm()))
            seen = seen if t == 1 or float(g.norm()) >= 1e-4 * most else min(seen, X)
            if t == 1:
                X, P = seen, 0.2
            else:
                P += 0.02 * max(1.0, 64 / t)
                k = P / (P + 0.2)
                X, P = X + k * (seen - X), P * (1 - k)
            longest = float((D * m).norm())
            rate = 0.003 * size / longest if rate is None else rate
        allowed = 2 * math.exp(X)
        slow = slow or (1.10 * rate > allowed and t > 64)
        rate = min((1.03 if slow else 1.10) * rate, allowed)
        share, step = turn / math.sqrt(t + 64) * size, D * m
        most_rate = share / longest if adaptive else 0.002 / shrinking if shrinking > 0 else math.inf
        rate = min(rate, most_rate)
        step = step * min(1.0, share / (rate * float(step.norm())))
        w = w - rate * step
        found.append((w, rate))
    return found


CASES = {
    "shrinks": (lambda t: 1.0, 0.0),
    "settles": (lambda t: 3.0, 100.0),
    "flattens early": (lambda t: 3.0 if t < 55 else 0.01, 100.0),
    "flattens late": (lambda t: 3.0 if t < 100 else 0.01, 100.0),
    "sharpens": (lambda t: 0.01 if t < 100 else 3.0, 100.0),
    "flattens at 64": (lambda t: 3.0 if t < 64 else 2.55, 100.0),
    "is flat": (lambda t: 1e-4, 100.0),
    "is small": (lambda t: 1.0, 0.01),
}


@pytest.mark.parametrize("adaptive", [False, True], ids=["sgd", "Adam"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_rule_step_by_step(case, adaptive):
    curvature, center = CASES[case]
    w = nn.Parameter(center + (0.05 if center == 0.01 else 1.0) * randn(20, seed=3))
    start = w.detach().clone()
    base = torch.optim.Adam([w], lr=7.0) if adaptive else torch.optim.SGD([w], lr=7.0)
    opt = infhess.Preconditioned(base, blocks="layer")
    loss = lambda b: 0.5 * (b * (w - center).square()).sum()  # noqa: E731
    curvatures = [curvature(t) for t in range(1, 161)]
    for c, (expected, rate) in zip(curvatures, reference(start, center, curvatures, adaptive), strict=True):
        drive(opt, loss, [torch.full((1,), c, dtype=F64)])
        close(w.detach() - start, expected - start, 1e-6)
        assert opt._state.rate == pytest.approx(rate, rel=1e-4)
