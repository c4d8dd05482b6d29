"""Gradient accumulation: several `observe` before one `step` are one batch."""

import math
from contextlib import nullcontext
from statistics import fmean

import pytest
import torch
from torch import nn

import infhess
from rate_free_cases import data, flat, loss_of, small_net

F64 = torch.float64


def least_squares(parts, steps=80, base=lambda p: torch.optim.SGD(p, lr=0.1), last_alone=False, uneven=False):
    """Self-driving on least squares of condition 2,000, batches of 32 cut in so many micro-batches."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(512, 8, generator=g, dtype=F64) * torch.logspace(0, -1.65, 8, dtype=F64)
    y = X.sum(1)
    w = nn.Parameter(torch.zeros(8, dtype=F64))
    opt, loss = infhess.Preconditioned(base([w])), lambda b: (b[0] @ w - b[1]).square().mean()
    for t in range(steps):
        part = torch.randint(512, (32,), generator=g)
        opt.zero_grad()
        number = 2 if uneven and t % 5 == 0 else parts
        micro = part.chunk(number)
        for i, small in enumerate(micro):
            (loss((X[small], y[small])) / number).backward()
            if not last_alone:
                opt.observe(loss, (X[small], y[small]))
            elif i == number - 1:
                opt.observe(loss, (X[small], y[small]), points=32)
        opt.step()
    return w.detach(), float(loss((X, y)).detach())


@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_are_one_batch_to_rounding(parts, base):
    make = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1), "adam": lambda p: torch.optim.Adam(p, lr=0.1)}[base]
    whole, value = least_squares(1, base=make)
    cut, other = least_squares(parts, base=make)
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-13)
    assert other < max(2 * value, 1e-12)
    assert value < {"sgd": 1e-9, "adam": 1e-3}[base]


def test_micro_batches_of_changing_number_end_as_low():
    assert least_squares(4, uneven=True)[1] < 1e-9


def test_a_batch_that_does_not_tell_its_size_is_told_by_points():
    w = nn.Parameter(torch.ones(4, dtype=F64))
    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1))

    class Graph:
        def __init__(self, x):
            self.x = x

    loss = lambda b: (b.x * w).square().mean()  # noqa: E731
    for i in range(40):
        batch = Graph(torch.randn(16, 4, generator=torch.Generator().manual_seed(i), dtype=F64))
        opt.zero_grad()
        loss(batch).backward()
        opt.observe(loss, batch, points=16)
        opt.step()
    assert float(w.detach().norm()) < 1e-3
    assert opt._state.read == 40 * 16
    with pytest.raises(ValueError, match="points"):
        opt.observe(loss, batch, points=0)


def rates(parts, way="observe", steps=130, draw=0):
    """What curvature allows for at each step, batches of 64 cut in so many micro-batches."""
    model = small_net()
    opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data(256)
    y = y + torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=F64)  # noise dominates gradients
    seen = []
    for t in range(steps):
        part = torch.randint(256, (64,), generator=torch.Generator().manual_seed(t + 1000 * draw))
        opt.zero_grad()
        for i, small in enumerate(part.chunk(parts)):
            with opt.watch() if way == "watch" else nullcontext():
                (loss((x[small], y[small])) / parts).backward()
            if way == "observe":
                opt.observe(loss, (x[small], y[small]))
            elif way == "last alone" and i == parts - 1:
                opt.observe(loss, (x[small], y[small]), points=64)
        opt.step()
        seen.append(opt._rate_state.allowed)  # not the rate itself, which is at its bound by |w| here
    assert opt._rate_state.points == 64
    return torch.tensor(seen, dtype=F64), flat(model)


def test_rate_free_takes_micro_batches_as_one_batch_to_rounding():
    whole, weights = rates(1)
    cut, same = rates(8)
    torch.testing.assert_close(cut, whole, rtol=1e-7, atol=0.0)
    torch.testing.assert_close(same, weights, rtol=1e-7, atol=1e-8)


def test_two_graphs_of_eight_training_passes_read_as_the_whole_batch_but_for_noise():
    """Without what the two share, hᵀDh of one micro-batch would allow for .58 of the whole batch's learning rate."""
    assert abs(_log_ratio(2, 0)) < 1e-9
    assert abs(fmean(_log_ratio(8, draw) for draw in range(8))) < 0.2


def _log_ratio(parts, draw, way="watch"):
    whole, cut = (rates(n, way, 70, draw)[0] for n, way in ((1, "observe"), (parts, way)))
    return float((cut / whole)[20:].log().mean())


def test_the_last_micro_batch_alone_allows_for_less():
    # Its noise adds to hᵀDh: .58 of the whole batch's. Taken for a batch eight times smaller as well: .58 · 8^{−1/3} = .29.
    assert math.log(0.45) < fmean(_log_ratio(8, draw, "last alone") for draw in range(8)) < 0


def test_several_observations_of_one_batch_move_as_one():
    """Micro-batches that are alike: the probe of one is the probe of all, to rounding."""
    models = []
    for parts in (1, 4):
        model = small_net()
        opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data()
        for t in range(60):
            part = torch.randint(64, (16,), generator=torch.Generator().manual_seed(t))
            opt.zero_grad()
            for _ in range(parts):
                (loss((x[part], y[part])) / parts).backward()
                opt.observe(loss, (x[part], y[part]), points=16 // parts)
            opt.step()
        models.append(flat(model))
    torch.testing.assert_close(models[0], models[1], rtol=1e-6, atol=1e-8)


def test_every_step_is_decided_upon_once_however_many_micro_batches_it_has():
    w = nn.Parameter(torch.ones(4, dtype=F64))
    opt, loss = infhess.Preconditioned(torch.optim.SGD([w], lr=0.1)), lambda b: (b @ w - 1).square().mean()
    for t, number in enumerate((2, 2, 1, 2, 1, 1, 3), 1):
        opt.zero_grad()
        for i in range(number):
            batch = torch.randn(32, 4, generator=torch.Generator().manual_seed(10 * t + i), dtype=F64)
            (loss(batch) / number).backward()
            opt.observe(loss, batch)
        opt.step()
        assert (opt._state.steps, opt._state.micro_batches) == (t, number)
