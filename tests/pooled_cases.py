"""Curvature from several processes, each with data of its own, and from one process with all of it."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import infhess
from watch_cases import F64, batch

BATCHES, POINTS, FEW = 64, 16, 4


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(F64)


def loss_of(model):
    return lambda b: F.cross_entropy(model(b[0]), b[1])


def batches_of(ranks):
    """Batches of these processes, joined."""
    parts = [[batch("mlp", 100 * i + r, POINTS) for r in ranks] for i in range(BATCHES)]
    return [tuple(torch.cat(values) for values in zip(*part)) for part in parts]


def measure(batches):
    """Everything that reads a source, as lists of numbers."""
    model = model_of()
    source = lambda: infhess.Hessian(loss_of(model), model.parameters(), batches)  # noqa: E731
    spectrum = infhess.spectrum(source(), k=3)
    trace, largest = infhess.trace(source()), infhess.largest(source())
    posterior = infhess.infer(source(), steps=6)
    opt = infhess.Preconditioned(torch.optim.SGD(model.parameters(), lr=0.1), rank=4)
    report = opt.update(loss_of(model), batches)
    low, high = spectrum.interval(0.95)
    return {
        "spectrum": [*spectrum.values.tolist(), *low.tolist(), *high.tolist(), spectrum.data_points],
        "trace": [trace.value, trace.std, trace.data_points],
        "largest": [largest.value, largest.std],
        "infer": posterior.eigh(3).values.tolist(),
        "update": [*report.values.tolist(), report.step, report.data_points],
    }


def cases(rank, world):
    found = measure(batches_of([rank]))
    found["alone"] = [alone()]
    found["uneven"] = uneven(rank)
    found["sampler"] = sampled(rank)
    return found


def alone():
    """A source that is kept to its process takes part in nothing."""
    if distributed.get_rank():
        return 0.0
    model = model_of()
    source = infhess.Hessian(loss_of(model), model.parameters(), batches_of([0, 1]))
    source.pooled = False
    return float(infhess.spectrum(source, k=1).values[0])


def uneven(rank):
    """One process has fewer data, in an iterator that runs dry: both end with the same error."""
    model = model_of()
    few = iter(batches_of([rank])[: 3 if rank else 20])
    try:
        infhess.spectrum(infhess.Hessian(loss_of(model), model.parameters(), few), k=2)
    except ValueError as error:
        return str(error)
    return ""


def sampled(rank):
    """All data of a DistributedSampler is known to be all: no interval is left, but that of the iteration."""
    x, y = (torch.cat(values) for values in zip(*batches_of([0])[:8]))
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=True, seed=3))
    model = model_of()
    source = infhess.Hessian(loss_of(model), model.parameters(), loader)
    return [source.stream.population, *infhess.spectrum(source, k=1, rtol=1e-6).values.tolist()]


def coverage(trials, rank, world):
    """How often the interval of the top eigenvalue has the truth in it."""
    model, hits = model_of(), 0
    x, y = (torch.cat(values) for values in zip(*batches_of([0])))
    params = list(model.parameters())
    flat = torch.func.functional_call
    names = [name for name, _ in model.named_parameters()]

    def whole(*values):
        return F.cross_entropy(flat(model, dict(zip(names, values)), (x,)), y)

    blocks = torch.autograd.functional.hessian(whole, tuple(params))
    sizes = [p.numel() for p in params]
    H = torch.cat([torch.cat([b.reshape(n, -1) for b in row], 1) for n, row in zip(sizes, blocks)])
    truth = float(torch.linalg.eigvalsh(H.detach())[-1])
    for trial in range(trials):
        g = torch.Generator().manual_seed(1000 * trial + rank)
        order = torch.randint(len(x), (600, 8), generator=g)
        source = infhess.Hessian(loss_of(model), params, [(x[i], y[i]) for i in order])
        low, high = infhess.spectrum(source, k=1, generator=torch.Generator().manual_seed(trial)).interval(0.95)
        hits += float(low[0]) <= truth <= float(high[0])
    return hits
