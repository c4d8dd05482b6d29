"""Replicas without DistributedDataParallel: gradients averaged by hand, and processes that fail or have nothing."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import distributed, nn
from torch.nn import functional as F

import infhess
from observing import MAKE
from rate_free_cases import data, flat, loss_of, small_net
from util import randn
from watch_cases import batch, net, weights

WRAPPED = [("sgd", "layer"), ("sgd", "whole"), ("Adam", "whole")]


def cases(rank, world):
    found = {"rate-free": rate_free(rank), **{case: wrapped(rank, *case) for case in WRAPPED}}
    found |= {name: case(rank) for name, case in FAILURES.items()}
    return found


def average(params):
    for p in params:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        distributed.all_reduce(p.grad)
        p.grad /= distributed.get_world_size()


def rate_free(rank):
    """`observe` on eight points each."""
    model = small_net()
    opt, loss, (x, y) = infhess.RateFree(model.parameters()), loss_of(model), data()
    stream = torch.Generator().manual_seed(3)
    for _ in range(12):
        part = torch.randint(len(x), (16,), generator=stream)
        mine = part[8 * rank : 8 * rank + 8]
        opt.zero_grad()
        loss((x[mine], y[mine])).backward()
        average(model.parameters())
        opt.observe(loss, (x[mine], y[mine]))
        opt.step()
    return float(opt.rate), float(flat(model).sum()), opt._rate_state.points


def wrapped(rank, name, blocks):
    """`Preconditioned`, with an `update` in between; one of the two sees NaN at times, and both skip that probe."""
    w = nn.Parameter(randn(40, seed=1))
    opt = infhess.Preconditioned(MAKE[name]([w]), blocks=blocks, rank=2)
    loss = lambda b: (b * w).sin().sum() + w.square().sum()  # noqa: E731
    for t in range(16):
        mine = randn(40, seed=10 + 2 * t + rank)
        if t in (3, 10) and rank:  # the fourth step is probed, and the first after an update
            mine = mine * math.nan
        if t == 10:
            opt.update(loss, [randn(40, seed=900 + i) for i in range(40)], split=False)
        opt.zero_grad()
        report = opt.observe(loss, mine)
        w.grad = torch.autograd.grad(loss(mine.nan_to_num()), w)[0]
        average([w])
        opt.step()
        if t in (3, 10):
            assert any("skipped" in note for note in report.notes)
    n = opt._state
    return n.rate, n.log_rate, n.directions, float(w.detach().sum())


# ---- one process fails, or has nothing to probe


def begun(make=infhess.RateFree, steps=6):
    """A net that has trained for a while, an optimizer that is about to probe, and its loss."""
    model = net("mlp")
    opt = make(model.parameters())
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    for t in range(steps):
        step(model, opt, loss, batch("mlp", 10 * t + distributed.get_rank(), 8))
    if make is infhess.RateFree:
        opt._rate_state.steps_at_probe = -1000.0
    else:
        opt._state.steps_at_probe = -1000.0
    return model, opt, loss


def step(model, opt, loss, *batches, way="watch", loss_of_observe=None):
    """One step with these micro-batches, of which there may be none; the notes that are new."""
    before = opt.report
    opt.zero_grad()
    for b in batches:
        points = len(b[0]) or 1
        with opt.watch() if way == "watch" else nullcontext():
            (loss(b) * points / points if len(b[0]) else 0 * loss(batch("mlp", 0, 1))).backward()
    average(model.parameters())
    if way == "observe":
        for b in batches:
            opt.observe(loss_of_observe or loss, b)
    opt.step()
    return [] if opt.report is before else list(opt.report.notes)


def outcome(model, opt, notes):
    """And that all go on together."""
    notes += step(
        model, opt, lambda b: F.cross_entropy(model(b[0]), b[1]), batch("mlp", 99 + distributed.get_rank(), 8)
    )
    return weights(model).tolist(), notes


def empty(rank, make=infhess.RateFree):
    """An empty batch in `observe`."""
    model, opt, loss = begun(make)
    x, y = batch("mlp", 50 + rank, 8)
    return outcome(model, opt, step(model, opt, loss, (x[: 8 * rank], y[: 8 * rank]), way="observe"))


def broken(rank, error):
    """A loss that fails in one process: a kind that skips a probe, or one that ends all."""
    model, opt, loss = begun()

    def fails(b):
        if not rank:
            raise error("too much")
        return loss(b)

    try:
        notes = step(model, opt, loss, batch("mlp", 50 + rank, 8), way="observe", loss_of_observe=fails)
    except (RuntimeError, MemoryError) as said:
        return weights(model).tolist(), [str(said)]
    return outcome(model, opt, notes)


def absent(rank, way):
    """A process without data watches and observes nothing, once."""
    model, opt, loss = begun()
    notes = step(model, opt, loss, *[batch("mlp", 50, 8)][rank:], way=way)
    probed = opt._rate_state.steps_at_probe
    found = outcome(model, opt, notes)
    assert opt._rate_state.steps_at_probe > probed == -1000.0  # the next step is probed instead
    return found


def uneven(rank):
    """Three micro-batches in one process, of which two are kept, and one in the other."""
    model, opt, loss = begun()
    notes = step(model, opt, loss, *[batch("mlp", 50 + i, 8) for i in range(3 - 2 * rank)])
    return outcome(model, opt, [*notes, float(opt.rate)])


FAILURES = {
    "empty": empty,
    "empty, wrapped": lambda rank: empty(
        rank, lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=1.0), blocks="layer")
    ),
    "value": lambda rank: broken(rank, ValueError),
    "fatal": lambda rank: broken(rank, MemoryError),
    "absent, watch": lambda rank: absent(rank, "watch"),
    "absent, observe": lambda rank: absent(rank, "observe"),
    "uneven": uneven,
}
