"""What the optimizer costs on the paper's net: a step relative to its base, an estimate relative to an epoch, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, median

import torch
from torch.nn.functional import cross_entropy

from infhess.curvature import Hessian
from infhess.optim import Preconditioned, RateFree
from infhess_bench.harness import Job, Row, Target, at_most, markdown, target_cells
from infhess_bench.harness.methods import paper_optimizer_for_nets
from infhess_bench.harness.peak import Peak
from infhess_bench.harness.timing import copied_bytes, copy_seconds, on_threads, timed
from infhess_bench.problems import paper_net, seeded
from infhess_bench.problems.shuffled import objective

EXPERIMENT, BATCH, EPOCH, REPEATS = "bench-deep-cost", 32, 1563, 15
FEW = 2  # points, to separate parameters from activations
RANKS, SCALINGS = (2, 8, 32), ("diagonal", "kronecker")
# A rotated step: pretended steps before it, real ones, and the number of steps that are timed, including probes.
BEGUN, WARM, AHEAD, ROTATED_STEP = (130, 1000), 16, 80, "rotated step − Adam's / training step, from step {}"
RATE = 1e-8  # so small that nothing moves while it is timed


class NoiseNet:
    """The net, batches of noise, and its loss."""

    def __init__(self, seed: int, width: float) -> None:
        with seeded(seed):
            self.model = paper_net(width)
            self.batches = [(torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))) for _ in range(8)]
        self.params = list(self.model.parameters())
        self.loss, self.size = objective(cross_entropy, self.model, 0.0), sum(p.numel() for p in self.params)

    def gradient(self, i: int = 0) -> None:
        """One ordinary gradient, of batch i of those that take turns."""
        for p in self.params:
            p.grad = None
        self.loss(self.batches[i % len(self.batches)]).backward()  # type: ignore[no-untyped-call]


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """A step at each rank and an estimate, on one thread and on all; on a narrow copy of the net with `quick`."""
    width, ranks = (0.1, RANKS[:1]) if quick else (1.0, RANKS)
    for threads in sorted({1, torch.get_num_threads()}):
        problem = f"paper's net, {threads} thread{'s' if threads > 1 else ''}"
        found: list[tuple[str, Callable[..., list[Row]], tuple[object, ...]]] = [
            *((f"step at rank {rank} / bound", step_rows, (rank,)) for rank in ranks),
            ("update / epoch in seconds", update_rows, ()),
            *((f"probe, {scaling} / gradient", probe_rows, (scaling,)) for scaling in SCALINGS),
            *((ROTATED_STEP.format(begun), rotated_rows, (begun,)) for begun in BEGUN),
        ]
        for method, call, what in found:
            yield Job(Row(EXPERIMENT, problem, method, seed, BATCH), call, (threads, *what, width))


def step_rows(template: Row, threads: int, rank: int, width: float) -> list[Row]:
    """Seconds of a step beyond its base's, in units of gradients and of the time to move its bytes."""
    with on_threads(threads):
        net = NoiseNet(template.seed, width)
        base = torch.optim.SGD(net.params, lr=RATE)
        opt = Preconditioned(base, rank, method="curvature", blocks="layer", step_length="keep")
        opt.update(net.loss, net.batches)  # so that directions are in use
        net.gradient()
        gradient = median(timed(net.gradient) for _ in range(REPEATS))
        pairs = [(timed(opt.step), timed(opt.base.step)) for _ in range(4 * REPEATS)][REPEATS:]
        bandwidth = copied_bytes(net.size) / copy_seconds(net.size)
    extra = median(a - b for a, b in pairs)
    # U and g are read for Uᵀg, and again for g − U(…), which is written.
    bound = (2 * rank + 3) * net.size * 4 / bandwidth
    held = sum(own.basis.numel() * own.basis.element_size() for own in opt._preconditioner_state.blocks)
    measured = {
        f"step at rank {rank} / gradient": extra / gradient,
        f"step at rank {rank} / bound": extra / bound,
        f"memory at rank {rank} / parameters": 1 + held / (4 * net.size),  # plus the scaled gradient
    }
    return [replace(template, method=name, seconds=extra, metric=metric) for name, metric in measured.items()]


def rotated_rows(template: Row, threads: int, begun: int, width: float) -> list[Row]:
    """Seconds of the next steps of the rotated scaling beyond Adam's, including probes and refreshes; per training step.

    Each step has another gradient, as in training: in its own eigenbasis a constant gradient has entries whose squares
    underflow, and denormal numbers are slow.
    """
    with on_threads(threads):
        mine, adam = NoiseNet(template.seed, width), NoiseNet(template.seed, width)
        opt, base = RateFree(mine.params, lr=RATE), torch.optim.Adam(adam.params, lr=RATE, foreach=True)
        adam.gradient()
        pairs = []
        for i in range(WARM + AHEAD):
            if i == WARM:
                age(opt, begun)
            mine.gradient(i)
            pairs.append((timed(partial(_observed, mine, opt, i)), timed(base.step)))
        pairs = pairs[WARM:]
        gradient = median(timed(net.gradient) for net in (mine, adam) for _ in range(REPEATS))
    extra, step = mean(a - b for a, b in pairs), mean(b for _, b in pairs)
    return [replace(template, seconds=extra, metric=extra / (gradient + step))]


def _observed(net: NoiseNet, opt: RateFree, i: int) -> None:
    opt.observe(net.loss, net.batches[i % len(net.batches)])
    opt.step()


def age(opt: RateFree, steps: int) -> None:
    """Pretend that this many steps were made: intervals between refreshes, statistics and probes grow with the steps."""
    state = opt._rate_state
    state.steps, state.steps_at_probe, state.observed_at = (float(steps),) * 3
    for own in opt.state.values():
        own["step"].fill_(steps)


def probe_rows(template: Row, threads: int, scaling: str, width: float) -> list[Row]:
    """A step that probes the training pass, relative to one that does not: in gradients, and in peak memory."""
    with on_threads(threads):
        net = NoiseNet(template.seed, width)
        opt = RateFree(net.params, scaling=scaling, lr=RATE)
        pair = partial(_probing, net, opt)
        times = [(pair(True) - pair(False), timed(net.gradient)) for _ in range(2 * REPEATS + 2)][2:]
        few, many = (_copies(net, opt, points) for points in (FEW, BATCH))
    extra = median(seconds for seconds, _ in times)
    # Ratios of adjacent measurements, since the speed of the machine may vary over time.
    measured = {f"probe, {scaling} / gradient": median(seconds / gradient for seconds, gradient in times)}
    # Activations in the graph grow with the batch, and dominate memory for many points: they are separated out.
    point = (many - few) / (BATCH - FEW)
    measured |= {f"probe, {scaling}: memory without activations / parameters": few - FEW * point}
    measured |= {f"probe, {scaling}: activations of a point / parameters": point}
    return [replace(template, method=name, seconds=extra, metric=metric) for name, metric in measured.items()]


def _copies(net: NoiseNet, opt: RateFree, points: int) -> float:
    """The peak of a step with a probe beyond that of one without, in copies of the parameters."""
    x, y = net.batches[0]
    net.batches[0] = x[:points], y[:points]
    known, peaks = [t for p in net.params for t in (p, p.grad, *opt.state[p].values()) if t is not None], []
    for probe in (True, False):
        with Peak(known) as peak:
            _probing(net, opt, probe)
        peaks.append(peak.most)
    net.batches[0] = x, y
    return float(peaks[0] - peaks[1]) / (4 * net.size)


def _probing(net: NoiseNet, opt: RateFree, probe: bool) -> float:
    """Seconds of a whole step; the probe is forced or suppressed."""
    state = opt._rate_state
    state.steps_at_probe, state.rate_at_probe = -state.steps - 1000 if probe else state.steps + 1, state.rate
    state.steps = max(state.steps, 1000.0)

    def step() -> None:
        with opt.watch(points=BATCH):
            net.gradient()
        opt.step()

    return timed(step)


def update_rows(template: Row, threads: int, width: float) -> list[Row]:
    """An estimate of the paper's kind (10 + 5 products, rank 2), relative to an epoch of 1563 gradients."""
    with on_threads(threads):
        net = NoiseNet(template.seed, width)
        opt, source = paper_optimizer_for_nets(net.params, RATE), Hessian(net.loss, net.params, net.batches)
        net.gradient()
        report = opt.update(net.loss, net.batches)
        pairs = [(timed(lambda: opt.update(net.loss, net.batches)), timed(net.gradient)) for _ in range(7)]
        product = median(timed(source.gradient_and_product) / timed(net.gradient) for _ in range(REPEATS))
    seconds, gradient = (median(x) for x in zip(*pairs))
    whole = replace(template, products=report.products, seconds=seconds)
    ratios = {"gradients": report.products * product / EPOCH, "seconds": seconds / (EPOCH * gradient)}
    return [replace(whole, method=f"update / epoch in {name}", metric=ratio) for name, ratio in ratios.items()]


def targets(rows: Sequence[Row]) -> list[Target]:
    """The ratios, and their goals."""
    bounds = {"step at rank 2 / gradient": 0.02}
    bounds |= {f"update / epoch in {unit}": 0.025 for unit in ("gradients", "seconds")}
    bounds |= {f"step at rank {k} / bound": 1.5 for k in RANKS}
    bounds |= {f"probe, {scaling} / gradient": 1.6 for scaling in SCALINGS}
    bounds |= {f"probe, {scaling}: memory without activations / parameters": 4 for scaling in SCALINGS}
    bounds |= {ROTATED_STEP.format(begun): 0.15 for begun in BEGUN}
    bounds |= {f"memory at rank {k} / parameters": k + 2 for k in RANKS}
    return [at_most(f"{r.problem}: {r.method}", r.metric, bounds[r.method]) for r in rows if r.method in bounds]


def summary(rows: Sequence[Row]) -> str:
    """The targets as a table."""
    return markdown(target_cells(targets(rows)))
