"""What the optimizer costs on the paper's net: a step over its base, an estimate over an epoch, memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from infhess.bench.inference import Target, at_most, copy_bandwidth, table
from infhess.experiments.pieces import Piece
from infhess.experiments.rows import Row
from infhess.optim import Preconditioned
from infhess.problems.nets import paper_net

EXPERIMENT, BATCH, EPOCH, REPEATS = "bench-deep-cost", 32, 1563, 15
RANKS = (2, 8, 32)


class Setting:
    """The net, batches of noise and its loss."""

    def __init__(self, seed: int, width: float) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.model = paper_net(width)
            self.batches = [(torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))) for _ in range(8)]
        self.params = list(self.model.parameters())
        self.size = sum(p.numel() for p in self.params)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def gradient(self) -> None:
        """One ordinary gradient."""
        for p in self.params:
            p.grad = None
        self.loss(self.batches[0]).backward()  # type: ignore[no-untyped-call]

    def optimizer(self, rank: int, method: str) -> Preconditioned:
        """With directions in use; the rate is small, so that nothing moves while it is timed."""
        base = torch.optim.SGD(self.params, lr=1e-8)
        opt = Preconditioned(base, rank, method=method, blocks="layer", step_length="keep")
        opt.update(self.loss, self.batches)
        return opt


def timed(f: Callable[[], object]) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def pieces(seed: int, *, quick: bool = False) -> Iterator[Piece]:
    """A step at each rank and an estimate, on one thread and on all; a narrow copy of the net with `quick`."""
    width, ranks = (0.1, RANKS[:1]) if quick else (1.0, RANKS)
    for threads in sorted({1, torch.get_num_threads()}):
        problem = f"paper's net, {threads} thread{'s' if threads > 1 else ''}"
        for rank in ranks:
            key = (EXPERIMENT, problem, f"step at rank {rank} / bound", seed, BATCH)
            yield Piece(key, f"{problem}: a step at rank {rank}", step_rows, (problem, threads, rank, seed, width))
        key = (EXPERIMENT, problem, "update / epoch in seconds", seed, BATCH)
        yield Piece(key, f"{problem}: an estimate", update_rows, (problem, threads, seed, width))


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """With so many threads for the time being."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def step_rows(problem: str, threads: int, rank: int, seed: int, width: float) -> list[Row]:
    """Seconds that a step takes beyond its base's, in gradients and in the time that its bytes take."""
    with on_threads(threads):
        setting = Setting(seed, width)
        opt = setting.optimizer(rank, "curvature")
        setting.gradient()
        gradient = statistics.median(timed(setting.gradient) for _ in range(REPEATS))
        pairs = [(timed(opt.step), timed(opt.base.step)) for _ in range(4 * REPEATS)][REPEATS:]
        bandwidth = copy_bandwidth(setting.size)
    extra = statistics.median(a - b for a, b in pairs)
    # U and g are read for Uᵀg, and once more for g − U(…), which is written.
    bound = (2 * rank + 3) * setting.size * 4 / bandwidth
    held = sum(t.numel() * t.element_size() for own in opt._learnt.blocks for t in (own.basis, own.scratch))
    rows = {f"step at rank {rank} / gradient": extra / gradient, f"step at rank {rank} / bound": extra / bound}
    rows[f"memory at rank {rank} / parameters"] = 1 + held / (4 * setting.size)  # and the gradient handed on
    return [Row(EXPERIMENT, problem, name, seed, BATCH, seconds=extra, metric=metric) for name, metric in rows.items()]


def update_rows(problem: str, threads: int, seed: int, width: float) -> list[Row]:
    """An estimate of the paper's kind (10 + 5 products, rank 2), relative to an epoch of 1563 gradients."""
    with on_threads(threads):
        setting = Setting(seed, width)
        opt = Preconditioned(torch.optim.SGD(setting.params, lr=1e-8), 2, method="paper", blocks="layer")
        setting.gradient()
        report = opt.update(setting.loss, setting.batches)
        pairs = [(timed(lambda: opt.update(setting.loss, setting.batches)), timed(setting.gradient)) for _ in range(7)]
        costs = [timed(_product(setting)) / timed(setting.gradient) for _ in range(REPEATS)]
    seconds, gradient = (statistics.median(x) for x in zip(*pairs))
    work = report.products * statistics.median(costs)
    rows = {"update / epoch in gradients": work / EPOCH, "update / epoch in seconds": seconds / (EPOCH * gradient)}
    return [
        Row(EXPERIMENT, problem, name, seed, BATCH, products=report.products, seconds=seconds, metric=metric)
        for name, metric in rows.items()
    ]


def _product(setting: Setting) -> Callable[[], object]:
    from infhess.curvature import Hessian

    source = Hessian(setting.loss, setting.params, setting.batches)
    return source.gradient_and_product


def targets(rows: Sequence[Row]) -> list[Target]:
    """The ratios, and what they should be."""
    bounds = {
        "step at rank 2 / gradient": 0.02,
        "update / epoch in gradients": 0.025,
        "update / epoch in seconds": 0.025,
    }
    bounds |= {f"step at rank {k} / bound": 1.5 for k in RANKS}
    bounds |= {f"memory at rank {k} / parameters": k + 2 for k in RANKS}
    return [at_most(f"{r.problem}: {r.method}", r.metric, bounds[r.method]) for r in rows if r.method in bounds]


def markdown(rows: Sequence[Row]) -> str:
    """The targets as a table."""
    return table(targets(rows))
