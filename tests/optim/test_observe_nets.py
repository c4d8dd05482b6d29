"""observe in nets: curvature probes against the definition, and what keeps a net from shrinking away."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import infhess
from infhess.optim.base_optimizers import direction, sqrt_scaling
from infhess.optim.rate.settings import FILTER, NONCONVEX
from observing import curved, drive
from util import close, randn, spd

ADAPTIVE = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adagrad from 1": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=1.0),
}


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("before", [0, 1, 7])
def test_the_scaling_and_direction_are_those_of_the_coming_step(name, before):
    # Adam's amsgrad takes the largest square before it is corrected, as here; all gradients are far above ε.
    w = nn.Parameter(randn(12, seed=1))
    base = ADAPTIVE[name]([w])
    for i in range(before + 1):
        w.grad = randn(12, seed=10 + i)
        if i == before:
            g = w.grad
            moves = sqrt_scaling(base, g, g.square()).square() * direction(base, g)
            was = w.detach().clone()
        base.step()
    close(was - w.detach(), 0.1 * moves, 1e-6)


def test_as_it_stands_the_scaling_is_of_the_last_step():
    w = nn.Parameter(randn(12, seed=1))
    base = torch.optim.Adam([w], lr=0.1)
    for i in range(3):
        w.grad = randn(12, seed=10 + i)
        base.step()
    v = base.state[w]["exp_avg_sq"] / (1 - 0.999**3)
    close(sqrt_scaling(base, w.detach()), (v.sqrt() + 1e-8).rsqrt(), 1e-12)


def test_looks_are_the_ratio_of_the_definition_through_kalmans_filter():
    A, noise = spd(6, seed=2), [randn(6, seed=20 + i) for i in range(4)]
    w = nn.Parameter(randn(6, seed=3))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1e-3), blocks="layer")
    mean = variance = math.nan
    for t, e in enumerate(noise, 1):
        loss = lambda b: 0.5 * w @ A @ w + b @ w  # noqa: E731
        g = (A @ w + e).detach()
        seen = 0.5 * math.log(float(g @ g) / float((A @ g) @ (A @ g)))
        if t == 1:
            mean, variance = seen, FILTER.noise
        else:
            variance += FILTER.drift * NONCONVEX.settled / t
            k = variance / (variance + FILTER.noise)
            mean, variance = mean + k * (seen - mean), (1 - k) * variance
        (report,) = drive(opt, loss, [e])
        assert opt._state.log_rate == pytest.approx(mean, rel=1e-9)
        assert report.step_std == pytest.approx(report.step * variance**0.5, rel=1e-9)
        assert report.as_dict()["step/std"] == report.step_std
        assert report.products == 1


def test_looks_come_at_the_first_steps_at_powers_of_two_and_every_eighty():
    w = nn.Parameter(randn(6, seed=3))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1e-3), blocks="layer")
    looked = [t for t in range(1, 300) if drive(opt, curved(w), [randn(6, seed=t)])]
    assert looked == [1, 2, 3, 4, 8, 16, 32, 64, 128, 208, 288]


def test_an_update_begins_looks_anew():
    w = nn.Parameter(randn(6, seed=3))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1e-3), blocks="layer", rank=1)
    drive(opt, curved(w), [randn(6, seed=t) for t in range(100)])
    opt.update(curved(w), [randn(6, seed=500 + t) for t in range(40)], split=False)
    looked = [t for t in range(1, 100) if drive(opt, curved(w), [randn(6, seed=t)])]
    assert looked == [1, 2, 3, 4, 8, 16, 32, 64]


@pytest.mark.filterwarnings("ignore:.*exactly zero")
@pytest.mark.parametrize(("nesterov", "dampening"), [(False, 0.0), (False, 0.5), (False, 0.95), (True, 0.0)])
@pytest.mark.parametrize("momentum", [0.3, 0.9])
def test_with_momentum_the_rate_is_within_what_the_base_is_stable_at(momentum, nesterov, dampening):
    # On ½ c |w|²: (1 − dampening) lr up to 2 (1 + β)/c, with Nesterov's gradient 2 (1 + β)/((1 + 2β) c).
    c, w = 3.0, nn.Parameter(100 + randn(50, seed=3))
    base = torch.optim.SGD([w], lr=1e-3, momentum=momentum, nesterov=nesterov, dampening=dampening)
    opt = infhess.Preconditioned(base, blocks="layer")
    loss = lambda b: 0.5 * c * (w - 100).square().sum() + b @ w  # noqa: E731
    used, step = [], base.step
    base.step = lambda: (used.append(base.param_groups[0]["lr"]), step())  # type: ignore[method-assign]
    drive(opt, loss, [torch.zeros(50, dtype=w.dtype)] * 200)
    factor = 2.0 if nesterov else 2 * (1 + momentum)
    effective = used[-1] * (1 - dampening)
    assert effective == pytest.approx(factor * (1 - momentum) / c, rel=1e-6)
    assert effective < 2 * (1 + momentum) / ((1 + 2 * momentum if nesterov else 1) * c)
    assert float((w.detach() - 100).norm()) < 1e-3


def test_without_momentum_the_rate_is_at_the_edge():
    c, w = 3.0, nn.Parameter(100 * torch.ones(50, dtype=torch.float64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1e-3), blocks="layer")
    loss = lambda b: 0.5 * c * (w - 100).square().sum() + b @ w  # noqa: E731
    reports = drive(opt, loss, [1e-3 * randn(50, seed=t) for t in range(200)])
    assert reports[-1].step == pytest.approx(2 / c, rel=1e-6)


def test_groups_are_kept_to_the_one_with_the_least_momentum():
    c, w = 3.0, nn.Parameter(100 * torch.ones(50, dtype=torch.float64))
    v = nn.Parameter(100 * torch.ones(50, dtype=torch.float64))
    groups = [{"params": [w], "momentum": 0.9}, {"params": [v]}]
    opt = infhess.Preconditioned(torch.optim.SGD(groups, lr=1e-3), blocks="layer")
    loss = lambda b: 0.5 * c * ((w - 100).square() + (v - 100).square()).sum() + b @ (w + v)  # noqa: E731
    reports = drive(opt, loss, [1e-3 * randn(50, seed=t) for t in range(200)])
    assert reports[-1].step == pytest.approx(2 / c, rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_where_a_penalty_alone_pulls_w_does_not_shrink_away(momentum):
    # A net on its plateau: hardly any gradient but that of the penalty, along which curvature is tiny and the same.
    w = nn.Parameter(randn(40, seed=4))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0, momentum=momentum), blocks="layer")
    loss = lambda b: 0.005 * w.square().sum() + 1e-4 * (b * w).sin().sum()  # noqa: E731
    sizes, reports = [float(w.detach().norm())], []
    for i in range(150):
        reports += drive(opt, loss, [randn(40, seed=100 + i)])
        sizes.append(float(w.detach().norm()))
    shrunk = [1 - b / a for a, b in pairwise(sizes)]
    assert max(shrunk) < 3 * NONCONVEX.shrink  # the mean follows within some steps
    assert sum(shrunk[50:]) / 100 < 1.1 * NONCONVEX.shrink
    assert sizes[-1] > 0.1 * sizes[0]
    assert any("shrinks" in note for r in reports for note in r.notes)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_no_step_is_longer_than_its_share_of_w(momentum):
    w = nn.Parameter(randn(30, seed=5))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0, momentum=momentum), blocks="layer")
    loss = lambda b: (0.01 * b * w).cos().sum()  # noqa: E731
    told = []
    for i in range(140):
        was = w.detach().clone()
        scale = 300.0 if i > 60 else 1.0  # curvature grows by orders of magnitude from one batch to the next
        told += drive(opt, loss, [scale * randn(30, seed=200 + i)])
        share = NONCONVEX.turn / (i + 1 + NONCONVEX.settled) ** 0.5
        assert float((w.detach() - was).norm()) <= 1.001 * share * float(was.norm())
    assert "is kept to 5.1% of |w|" in "".join(told[-1].notes)  # at step 128


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_that_is_not_cut_is_not_said_to_be(momentum):
    w = nn.Parameter(10 + randn(30, seed=5))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0, momentum=momentum), blocks="layer")
    loss = lambda b: 0.5 * (w - 10).square().sum() + b @ w  # noqa: E731
    seen = []
    for i in range(64):
        reports = drive(opt, loss, [(1.0 if i == 15 else 0.2) * randn(30, seed=300 + i)])
        share = float(w.grad.norm()) * opt._state.rate / opt._state.limit
        seen += [(share, "is kept" in "".join(r.notes)) for r in reports]
    assert [share > 1 for share, _ in seen] == [said for _, said in seen]
    assert any(0.1 < share < 1 for share, _ in seen)


def test_growing_curvature_is_told():
    w = nn.Parameter(10 + randn(30, seed=6))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=1.0), blocks="layer")
    loss = lambda b: b[0, 0] * (0.5 * (w - 10).square().sum() + b[0, 1:] @ w)  # noqa: E731
    batches = [
        torch.cat([randn(1, seed=i).new_tensor([1.0 if i < 100 else 1e3]), randn(30, seed=i)]) for i in range(300)
    ]
    reports = drive(opt, loss, [b[None] for b in batches])
    assert any("has grown" in note for r in reports for note in r.notes)
    assert bool(torch.isfinite(w).all())
