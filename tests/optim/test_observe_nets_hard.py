"""observe in nets where it is hard: any rate, overflow, no curvature, tiny gradients, several processes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import infhess
from infhess.example import digits
from observing import MAKE, drive, train_on
from util import randn


def convolutions(*, xavier):
    """Three convolutions and three dense layers."""
    net = nn.Sequential(
        nn.Conv2d(3, 5, 5), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(5, 8, 3), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Conv2d(8, 10, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.Flatten(), nn.Linear(90, 41), nn.ReLU(), nn.Linear(41, 20), nn.ReLU(), nn.Linear(20, 10),
    )  # fmt: skip
    for layer in net if xavier else ():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def digits_as_images():
    images, labels = digits()
    x = nn.functional.interpolate(images[:, None].float() / 8 - 1, scale_factor=4)
    return x.expand(-1, 3, -1, -1)[:600].contiguous(), labels[:600]


FAST = [("default", "sgd"), ("xavier", "momentum"), ("default", "adam")]
ALL = itertools.product(("default", "xavier"), ("sgd", "momentum", "adam", "update"))


@pytest.mark.parametrize(
    ("start", "way"), [case if case in FAST else pytest.param(*case, marks=pytest.mark.long) for case in ALL]
)
def test_a_small_net_survives_any_rate(start, way):
    x, y = digits_as_images()
    ends = []
    for lr in (1e-6, 1e2):
        torch.default_generator.manual_seed(1)
        model = convolutions(xavier=start == "xavier")
        base = {
            "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
            "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
        }.get(way, torch.optim.SGD)(model.parameters(), lr=lr)
        opt = infhess.Preconditioned(base, rank=2, blocks="layer")

        def loss(batch, model=model):
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        if way == "update":
            g = torch.Generator().manual_seed(0)
            for step in range(60):
                part = torch.randint(len(x), (32,), generator=g)
                if step % 30 == 0:
                    opt.update(loss, [(x[i : i + 32], y[i : i + 32]) for i in range(0, 320, 32)])
                opt.zero_grad()
                loss((x[part], y[part])).backward()
                opt.step()
        else:
            train_on(loss, opt, (x, y), 32, 60)
        with torch.no_grad():
            ends.append(float(loss((x, y))))
    assert all(end < 2.31 for end in ends), ends
    assert max(ends) - min(ends) < 0.05, ends


@pytest.mark.parametrize("base", MAKE)
@pytest.mark.parametrize("before", [3, 5])  # the fourth step is looked at, the sixth is not
def test_a_loss_that_overflows_once_ends_nothing(base, before):
    w = nn.Parameter(torch.ones(4))
    opt = infhess.Preconditioned(MAKE[base]([w]), blocks="layer")
    loss = lambda b: (b * w).square().mean()  # noqa: E731
    drive(opt, loss, [torch.ones(4)] * before)
    was = w.detach().clone()
    with torch.no_grad():
        w.fill_(math.inf)
    opt.zero_grad()
    report = opt.observe(loss, torch.ones(4))
    assert (report is not None) == (before == 3)
    assert report is None or "skipped" in report.notes[0]
    with torch.no_grad():
        w.copy_(was)
    drive(opt, loss, [torch.ones(4)] * 100)
    assert bool(torch.isfinite(w).all())
    assert float(w.detach().abs().max()) < 0.9


@pytest.mark.parametrize("base", MAKE)
def test_until_a_rate_is_known_no_step_is_made(base):
    w = nn.Parameter(torch.ones(4))
    opt = infhess.Preconditioned(MAKE[base]([w]), blocks="layer")
    loss = lambda b: b[0] * w.square().sum() + b[1] * w.sum()  # noqa: E731
    linear, curved = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.1])
    (report,) = drive(opt, loss, [linear])
    assert "skipped" in report.notes[0]
    assert bool((w == 1).all())
    drive(opt, loss, [curved] * 50)
    assert float(w.detach().abs().max()) < 0.9


@pytest.mark.parametrize("base", MAKE)
def test_a_look_without_curvature_leaves_the_step_of_an_update(base):
    w = nn.Parameter(torch.ones(4))
    opt = infhess.Preconditioned(MAKE[base]([w]), blocks="layer", rank=2)
    loss = lambda b: b[0] * w.pow(4).sum() + b[1] * w.sum()  # noqa: E731
    opt.update(loss, [torch.tensor([1.0, 0.0])] * 40, split=False)
    step = opt._state.step
    drive(opt, loss, [torch.tensor([0.0, 1.0])])
    assert opt._state.step == step


def test_frozen_weights_are_no_measure_of_a_step():
    frozen, w = (
        nn.Parameter(torch.full((100,), 100.0), requires_grad=False),
        nn.Parameter(0.1 * randn(40, seed=8).float()),
    )
    opt = infhess.Preconditioned(torch.optim.SGD([frozen, w], lr=1.0), blocks="layer")
    loss = lambda b: (b * w).sin().sum() + 0.0 * frozen.sum()  # noqa: E731
    was = w.detach().clone()
    drive(opt, loss, [randn(40, seed=9).float()])
    assert float((w.detach() - was).norm()) < 0.02 * float(was.norm())


@pytest.mark.parametrize("base", MAKE)
def test_gradients_too_small_to_be_squared_are_no_error(base):
    w = nn.Parameter(torch.ones(4))
    opt = infhess.Preconditioned(MAKE[base]([w]), blocks="layer")
    drive(opt, lambda b: 1e-25 * (b * w).square().mean(), [torch.ones(4)] * 5)
    assert bool(torch.isfinite(w).all())


def test_a_loss_that_cannot_be_differentiated_twice_is_named():
    w = nn.Parameter(randn(6, 2, 5, seed=7))

    def loss(b):
        lengths = torch.full((2,), 6), torch.full((2,), 3)
        return nn.functional.ctc_loss((w * b).log_softmax(2), torch.ones(2, 3, dtype=torch.long), *lengths)

    opt = infhess.Preconditioned(torch.optim.SGD([w], lr=100.0), blocks="layer")
    with pytest.raises(ValueError, match="difference"):
        drive(opt, loss, [torch.ones(1, dtype=w.dtype)])
