"""FSDP2: training of sharded parameters, and the same on the joint batch in one process."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import distributed, nn
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import infhess
from rounding import rounded
from watch_cases import F64, batch

STEPS, SAVED = 12, 3
WIDTHS = {"even": 16, "uneven": 15}


def model_of(width, dtype=F64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)).to(dtype)


def sharded(model, mesh, policy=None):
    options = {"mesh": mesh, **({"mp_policy": policy} if policy else {})}
    for layer in (model[0], model[2], model):
        fully_shard(layer, **options)
    return model


def train(model, opt, ranks, world, steps, part=slice(None)):
    """On the shards of data of these ranks, or a part of them; the mean over ranks is what FSDP averages gradients to."""
    for t in steps:
        data = [tuple(v[part] for v in batch("mlp", 1000 * t + r, 16)) for r in ranks]

        def closure(data=data):
            opt.zero_grad()
            dtype = next(model.parameters()).dtype
            value = sum(F.cross_entropy(model(x.to(dtype)), y) for x, y in data) / len(data)
            value.backward()
            return value

        opt.step(closure)


def alone(width, world, scaling, processes=2, draw=0):
    """One process on the joint batch of `world` shards, by the same differences."""
    model = model_of(WIDTHS[width])
    rounded(model.parameters(), F64, draw)
    opt = infhess.RateFree(model.parameters(), scaling=scaling, points=16 * processes)
    opt._rate_state.differences = 1.0
    train(model, opt, range(world), world, range(STEPS))
    with opt.averaged():
        averaged = weights(model)
    return weights(model), averaged, float(opt.rate)


def weights(model):
    """All of them, in every process."""
    values = [p.detach() for p in model.parameters()]
    return torch.cat([(v.full_tensor() if hasattr(v, "full_tensor") else v).flatten() for v in values])


def make(mesh, width, scaling, policy=None, dtype=F64):
    model = sharded(model_of(WIDTHS[width], dtype), mesh, policy)
    return model, infhess.RateFree(model.parameters(), scaling=scaling, points=16)


def checkpoint(mesh, rank, world, width, scaling, folder):
    """Train, save, train on; and whether the same from the checkpoint, in a fresh model, ends with the same weights."""
    model, opt = make(mesh, width, scaling)
    train(model, opt, [rank], world, range(SAVED))
    save({"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, opt)}, checkpoint_id=folder)
    train(model, opt, [rank], world, range(SAVED, STEPS))
    again, other = make(mesh, width, scaling)
    resume(again, other, folder)
    train(again, other, [rank], world, range(SAVED, STEPS))
    return model, opt, bool(torch.equal(weights(model), weights(again)))


def resume(model, opt, folder):
    found = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, opt)}
    load(found, checkpoint_id=folder)
    set_model_state_dict(model, found["model"])
    set_optimizer_state_dict(model, opt, found["optim"])


def cases(folder, rank, world):
    mesh = distributed.device_mesh.init_device_mesh("cpu", (world,))
    found = {}
    for width in WIDTHS:
        for scaling in ("diagonal", "kronecker"):
            model, opt, resumed = checkpoint(mesh, rank, world, width, scaling, f"{folder}/{width}-{scaling}")
            own = opt.state[next(iter(model.parameters()))]
            with opt.averaged():
                averaged = weights(model)
            rate, after = float(opt.rate), weights(model)
            opt.eval()
            within = weights(model)
            opt.train()
            assert torch.equal(within, averaged)
            assert torch.equal(weights(model), after)
            opt.finish()
            assert torch.equal(weights(model), averaged)
            local = {name: value.to_local().numel() for name, value in own.items() if hasattr(value, "to_local")}
            found[width, scaling] = (after.tolist(), averaged.tolist(), rate, local)
            found["resumed", width, scaling] = resumed
    found["tensor parallel"] = {scaling: tensor_parallel(mesh, scaling) for scaling in ("diagonal", "kronecker")}
    found["half"] = half(mesh, rank, world)
    found["sent"] = {scaling: sent(mesh, rank, world, scaling) for scaling in ("diagonal", "kronecker")}
    found["refused"] = refused(mesh, rank)
    found["full"] = {scaling: full(mesh, rank, world, scaling) for scaling in ("diagonal", "kronecker")}
    return found


def tensor_parallel(mesh, scaling):
    """The layers of one model spread over processes, all on the same data."""
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(model_of(16), mesh, plan)
    opt = infhess.RateFree(model.parameters(), scaling=scaling, points=16)
    train(model, opt, [0], 1, range(STEPS))
    return weights(model).tolist()


class Sent(TorchDispatchMode):
    """Counts what collectives put out in this process: numbers gathered, and numbers summed."""

    def __init__(self):
        super().__init__()
        self.gathered, self.summed = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if "all_gather" in str(func):
            self.gathered += found.numel()
        elif "allreduce" in str(func):
            self.summed += sum(t.numel() for t in args[0])
        return found


def sent(mesh, rank, world, scaling):
    """By one step that neither probes nor refreshes bases: numbers gathered, numbers summed."""
    model, opt = make(mesh, "uneven", scaling)
    train(model, opt, [rank], world, range(7))
    with Sent() as seen:
        opt.step()
    return seen.gathered, seen.summed


def half(mesh, rank, world):
    """Mixed precision: the loss before and after."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, opt = make(mesh, "uneven", "diagonal", policy, torch.float32)
    values = []
    x, y = batch("mlp", 5, 64)
    for steps in (0, 20):
        train(model, opt, [rank], world, range(steps))
        values.append(float(F.cross_entropy(model(x.float()).float(), y).detach()))
    return values


def refused(mesh, rank):
    """What cannot work says so."""
    model, opt = make(mesh, "even", "diagonal")
    x, y = batch("mlp", 0, 16)
    said = []
    for use in (
        lambda: opt.watch().__enter__(),
        lambda: opt.observe(lambda b: F.cross_entropy(model(b[0]), b[1]), (x, y)),
    ):
        try:
            use()
        except RuntimeError as error:
            said.append(str(error))
    F.cross_entropy(model(x), y).backward()
    wrapper = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1))
    loss = lambda b: F.cross_entropy(model(b[0]), b[1])  # noqa: E731
    for use in (opt.step, lambda: wrapper.step(lambda: None), lambda: wrapper.update(loss, [(x, y)])):
        try:
            use()
        except RuntimeError as error:
            said.append(str(error))
    return said


def full(mesh, rank, world, scaling):
    """A full state dict, on the CPU, holds all numbers; and a run goes on from it."""
    model, opt = make(mesh, "uneven", scaling)
    train(model, opt, [rank], world, range(6))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    # Copies, as a file would be: what is no DTensor is shared with the optimizer.
    before, state = deepcopy(
        (get_model_state_dict(model, options=options), get_optimizer_state_dict(model, opt, options=options))
    )
    shapes = {k: {n: list(t.shape) for n, t in entry.items()} for k, entry in state.get("state", {}).items()}
    train(model, opt, [rank], world, range(6, 12))
    again, other = make(mesh, "uneven", scaling)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(again, before, options=options)
    set_optimizer_state_dict(again, other, state, options=options)
    train(again, other, [rank], world, range(6, 12))
    return shapes, bool(torch.equal(weights(model), weights(again)))


def resumed_elsewhere(folder, rank, world):
    """The second half of a run that two processes saved, by more of them: each has a part of the batch that one had."""
    mesh, found = distributed.device_mesh.init_device_mesh("cpu", (world,)), {}
    for scaling in ("diagonal", "kronecker"):
        model, opt = make(mesh, "uneven", scaling)
        opt.points = 32 // world
        resume(model, opt, f"{folder}/uneven-{scaling}")
        train(model, opt, [rank * 2 // world], world, range(SAVED, STEPS), part=slice(rank % 2, None, 2))
        found[scaling] = weights(model).tolist()
    return found
