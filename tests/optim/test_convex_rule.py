"""The convex controller against its definition: when it builds and probes, what that costs, and every step it makes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import infhess
from observing import drive
from util import F64, close, randn

D = 4  # so few that directions span all of them: P² is a multiple of the identity, as the curvature is


def loss_of(w):
    """The mean over points (c, x) of ½ c |w − x|²: curvature c̄ I and gradient c̄ w − mean(c x)."""
    return lambda batch: 0.5 * (batch[:, :1] * (w - batch[:, 1:]).square()).sum(1).mean()


def stream(n, steps, spikes=(), jump=1.0):
    """Batches of n points around 3, of one curvature each, about 1 and `jump` from step 30 on; far away at spikes."""
    found = []
    for t in range(1, steps + 1):
        c = (1 + 0.2 * math.sin(t)) * (jump if t >= 30 else 1.0)
        x = 3 + randn(n, D, seed=t) + (60.0 if t in spikes else 0.0)
        found.append(torch.cat([torch.full((n, 1), c, dtype=F64), x], 1))
    return found


class Slope:
    """gᵀ(w̄ − w̄') averaged, and the steps in which it was positive."""

    def __init__(self):
        self.recent, self.lagging, self.mean, self.squares, self.dominated = 0.0, 0.0, 0.0, 0.0, 0

    def see(self, t, w, g):
        self.recent = self.recent + (4 / (t + 4) if t > 1 else 1.0) * (w - self.recent)
        self.lagging = self.lagging + (1.5 / (t + 1.5) if t > 1 else 1.0) * (w - self.lagging)
        slope = float(g @ (self.recent - self.lagging))
        share = max(1 / t, min(1 / 10, 8 / (t + 8)))
        if t > 5:
            slope = max(-3 * self.squares**0.5, min(3 * self.squares**0.5, slope))
        self.mean += share * (slope - self.mean)
        self.squares += share * (slope**2 - self.squares)
        self.dominated += self.mean > 0 and t > 8


def directions(read, rank):
    return max(1, min(rank, int(math.sqrt(60 * math.sqrt(read) / 4))))


def pool_size(read, rank):
    return int(min(512, max(32, 60 * math.sqrt(read) / directions(read, rank))))


def is_rare(steps, base):
    return steps in {base**i for i in range(20)}


def reference(batches, rank=32):
    """Iterates, {step: products of a report}, builds and noise-dominated steps by the rule as documented, in closed form."""
    n = len(batches[0])
    w, v, slope, M = torch.zeros(D, dtype=F64), torch.zeros(D, dtype=F64), Slope(), 1.0
    pool, built, built_at, probes = 0, None, None, 0
    mean = squares = first = longest = gradient_scale = rate = 0.0
    limit = math.inf
    ws, products, builds = [], {}, []
    for t, batch in enumerate(batches, 1):
        read, c = n * t, float(batch[0, 0])
        g = c * (w - batch[:, 1:].mean(0))
        build = pool and pool >= (96 if built is None else pool_size(read, rank))
        rare = built is not None and is_rare(t - built, 4 if n > 128 else 2)
        # P² is the same at each build, and so is the noise of a step at the same rate.
        noisy = build and built and not slope.mean < -math.sqrt(slope.squares) / 3
        if build:
            limit = rate * math.sqrt(1 + slope.dominated / 50) if noisy else math.inf
            pool, built, built_at, probes = 0, t, read, 0
            M, v = 0.5, torch.zeros_like(v)
            builds.append(t)
        if build or t == 1 or probes * n < 32 or rare or float(g.norm()) > 10 * gradient_scale:
            # One product, as the space is invariant; a gradient where the step leads, if few were made or it would be twice as
            # long; a build takes D + 1 more, and one where the noise of slices is looked at.
            checked = probes < 2 or 2 * M * c <= mean
            products[t] = 1 + checked + (D + 1 + bool(noisy) if build else 0)
            probes += 1
            value, share = M * c, 1 / min(probes, 8)
            mean = value if probes == 1 else mean + share * (value - mean)
            squares = value**2 if probes == 1 else squares + share * (value**2 - squares)
            first = mean if probes <= 4 else first
            longest = max(0.0 if probes == 1 else longest, M * float(g.norm()))
            gradient_scale = float(g.norm()) if probes == 1 else max(gradient_scale, float(g.norm()))
        left = built is not None and probes > 4 and not 1 / 3 < mean / first < 3
        if pool or built is None or left or read >= 8 * built_at:
            pool += n
        slope.see(t, w, g)
        few = n < 32
        rate = (0.9 if few else 1.4) / ((squares / mean if few else mean) * (1 + 0.5 / probes))
        rate = min(rate, limit) if built_at else rate
        rate /= math.sqrt(1 + slope.dominated / 50)
        momentum = 0.0 if few else 0.5 / (1 + t / 500)
        # No gradient moves w by more than three of the longest, all that momentum makes of it together.
        step = M * g * min(1.0, 3 * longest * (1 - momentum) / (M * float(g.norm())))
        v = momentum * v + step
        w = w - rate * v
        ws.append(w)
    return ws, products, builds, slope.dominated


CASES = [(8, 140, 1.0), (40, 140, 1.0), (128, 90, 1.0), (129, 90, 1.0), (64, 90, 0.05), (64, 90, 12.0), (4, 90, 12.0)]


@pytest.mark.parametrize(("n", "steps", "jump"), CASES)
def test_it_is_the_rule_step_by_step(n, steps, jump):
    w = nn.Parameter(torch.zeros(D, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1))
    batches = stream(n, steps, (27, 83), jump)
    ws, products, builds, dominated = reference(batches)
    reports = {}
    for t, batch in enumerate(batches, 1):
        for report in drive(opt, loss_of(w), [batch]):
            reports[t] = report
        close(w.detach(), ws[t - 1], 1e-6)
    assert [t for t, report in reports.items() if len(report.values)] == builds
    assert {t: report.products for t, report in reports.items()} == products
    assert opt._state.noise_dominated == dominated > 5


def expected_builds(n, rank, steps):
    """(step, directions) of each build."""
    pool, built_at, found = 0, None, []
    for t in range(1, steps + 1):
        if pool and pool >= (96 if built_at is None else pool_size(n * t, rank)):
            found.append((t, directions(n * t, rank)))
            pool, built_at = 0, n * t
        if pool or built_at is None or n * t >= 8 * built_at:
            pool += n
    return found


@pytest.mark.parametrize("rank", [1, 5, 32])
def test_pools_share_the_work_with_directions_and_hold_no_more_than_512_points(rank):
    w = nn.Parameter(torch.zeros(60, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1), rank=rank)
    scale, found = torch.logspace(0, -1, 60, dtype=F64), []
    for t in range(1, 41):
        reports = drive(opt, lambda b: 0.5 * (b * scale @ w - b[:, 0]).square().mean(), [randn(64, 60, seed=t)])
        found += [(t, len(report.values)) for report in reports if len(report.values)]
    assert found == expected_builds(64, rank, 40)
    assert len(found) == 2


@pytest.mark.parametrize(("n", "at_first", "later"), [(128, 6, 4), (129, 2, 1)])
def test_lanczos_iterations_are_fewer_on_many_points_and_at_later_probes(n, at_first, later):
    # Eigenvalues that spread by a million, seen from where the small ones pull most: no value settles in six iterations.
    scale = torch.logspace(0, -3, 40, dtype=F64)
    w = nn.Parameter(scale**-3)
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1))
    x = torch.eye(40, dtype=F64).repeat(4, 1)[:n] * scale * 40**0.5
    first, build, after = drive(opt, lambda b: 0.5 * (b @ w).square().mean(), [x] * 3)
    # A gradient where the step leads comes with each of these, and a build has its directions and the slices before.
    assert first.products == at_first + 1
    assert build.products == directions(2 * n, 32) + 1 + at_first + 1
    assert after.products == later + 1


def test_no_step_is_made_before_a_rate_is_known():
    w = nn.Parameter(torch.ones(3, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1))
    (report,) = drive(opt, lambda b: (b @ w).mean(), [torch.ones(40, 3, dtype=F64)])  # no curvature, and a gradient
    assert "nothing was learnt" in report.notes[0]
    assert torch.equal(w.detach(), torch.ones(3, dtype=F64))


def test_a_parameter_without_a_gradient_changes_nothing():
    runs = []
    for unused in ([], [nn.Parameter(torch.ones(2, dtype=F64))]):
        w = nn.Parameter(torch.zeros(D, dtype=F64))
        drive(infhess.Preconditioned(torch.optim.SGD([w, *unused], lr=0.1)), loss_of(w), stream(40, 12))
        runs.append(w.detach())
    close(runs[1], runs[0], 1e-6)
