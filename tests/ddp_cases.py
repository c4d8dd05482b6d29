"""Training loops under DistributedDataParallel, and the same on the joint batch in one process."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed import broadcast
from torch.distributed.algorithms.join import Join
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import infhess
from infhess.optim import joining
from rounding import rounded
from watch_cases import F64, batch, net, weights

STEPS = 12
OPTIMIZERS = {
    "rate-free": infhess.RateFree,
    "sgd": lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=1.0)),
    "adam": lambda p: infhess.Preconditioned(torch.optim.Adam(p, lr=1.0)),
}
# name: (optimizer, way, clip, micro-batches, uneven, process with NaN, options of DistributedDataParallel)
CASES = {
    "watch": ("rate-free", "watch", 0.0, 1, False, False, {}),
    "observe": ("rate-free", "observe", 0.0, 1, False, False, {}),
    "closure": ("rate-free", "closure", 0.0, 1, False, False, {}),
    "clipped": ("rate-free", "watch", 0.1, 1, False, False, {}),
    "no_sync": ("rate-free", "watch", 0.0, 2, False, False, {}),
    "no_sync, clipped, observe": ("rate-free", "observe", 0.1, 2, False, False, {}),
    "uneven": ("rate-free", "watch", 0.0, 1, True, False, {}),
    "uneven, observe": ("rate-free", "observe", 0.0, 1, True, False, {}),
    "nan": ("rate-free", "watch", 0.0, 1, False, True, {}),
    "static graph": ("rate-free", "watch", 0.0, 1, False, False, {"static_graph": True}),
    "unused parameters": ("rate-free", "closure", 0.0, 1, False, False, {"find_unused_parameters": True}),
    "bucket views": ("rate-free", "watch", 0.0, 1, False, False, {"gradient_as_bucket_view": True}),
    "sgd": ("sgd", "watch", 0.0, 1, False, False, {}),
    "sgd, closure, clipped": ("sgd", "closure", 0.1, 1, False, False, {}),
    "adam": ("adam", "watch", 0.0, 1, False, False, {}),
    "adam, uneven, observe": ("adam", "observe", 0.0, 1, True, False, {}),
}
OF_FOUR = ["watch", "no_sync", "uneven", "sgd"]


def shard(t, rank, world, uneven, bad):
    """The data of one process at step t."""
    points = 16 if not uneven else 8 + 4 * ((t + rank) % 3)
    x, y = batch("mlp", 1000 * t + rank, points)
    if bad and t == 7 and rank == world - 1:
        x = x * math.nan
    return x, y


def run(name, rank, world, alone, draw=0):
    """One case, by one of `world` processes, or `alone` on the shards of all of them; weights and the learning rate."""
    optimizer, way, clip, micro, uneven, bad, options = CASES[name]
    model = net("mlp")
    rounded(model.parameters(), F64, draw)
    opt = OPTIMIZERS[optimizer](model.parameters())
    outer = model if alone else DistributedDataParallel(model, **options)
    ranks = range(world) if alone else [rank]

    def loss_of(net, shards):
        return sum(F.cross_entropy(net(x), y) for x, y in shards) / len(shards)

    def backward(shards, last=True):
        with nullcontext() if alone or last else outer.no_sync():
            value = loss_of(outer, shards) / micro
            value.backward()
        return value

    for t in range(STEPS):
        parts = [[shard(t + 100 * i, r, world, uneven, bad) for r in ranks] for i in range(micro)]
        opt.zero_grad()
        points = sum(len(x) for shards in parts for x, _ in shards) // micro
        for i, shards in enumerate(parts):
            if way == "watch":
                with opt.watch(points=points):
                    backward(shards, i == micro - 1)
            elif way == "observe":
                backward(shards, i == micro - 1)
                opt.observe(partial(loss_of, model), shards, points=points)
        if clip and way != "closure":
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step(partial(_closure, opt, model, backward, parts[0], clip) if way == "closure" else None)
    rate = float(opt.rate) if optimizer == "rate-free" else opt._state.rate
    return weights(model), rate


def _closure(opt, model, backward, shards, clip):
    opt.zero_grad()
    value = backward(shards)
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    return value


def cases(names, rank, world):
    """Weights and the learning rate of each case, by one of the processes."""
    found = {name: run(name, rank, world, alone=False) for name in names}
    return {name: (w.tolist(), rate) for name, (w, rate) in found.items()}


def uneven_ends(rank, world):
    """One process has more data than the other: with the optimizer in `Join`, and without."""
    model = net("mlp")
    opt, outer = infhess.RateFree(model.parameters()), DistributedDataParallel(model)

    def step(t):
        x, y = batch("mlp", 1000 * t + rank, 16)
        opt.zero_grad()
        with opt.watch():
            F.cross_entropy(outer(x), y).backward()
        opt.step()

    sent = []  # the tensors that the optimizer broadcasts
    counted = patch.object(joining.distributed, "broadcast", lambda t, src: sent.append(t) or broadcast(t, src))
    with counted, Join([outer, opt]):
        for t in range(8 + 56 * rank):
            step(t)
    held = {id(t) for own in opt.state.values() for t in own.values()}
    found = [weights(model).tolist(), *(own["averaged"].tolist() for own in opt.state.values())]
    found.append([opt._rate_state.steps, opt._rate_state.rate])
    for t in range(100, 104):  # and on, together
        step(t)
    found.append(weights(model).tolist())
    alone = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=1.0))
    said = ""
    try:
        with outer.join(), alone.watch():
            outer(batch("mlp", 0, 16)[0])
    except RuntimeError as error:
        said = str(error)
    return found, said, (len(sent), len(held))
