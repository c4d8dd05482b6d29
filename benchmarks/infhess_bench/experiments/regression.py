"""The paper's regression experiment: SARCOS, 253 features, four batch sizes, compared with an exact solution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from infhess_bench.experiments import convex_experiment, page, plots
from infhess_bench.experiments.convex_experiment import ONLINE, PAPER, TUNED, ConvexExperiment, Size, rates
from infhess_bench.experiments.page import Claim, Figure, verdict
from infhess_bench.experiments.plots import Line
from infhess_bench.harness import TUNING_SEED, Cell, Curves, Job, Row, Run, Setting, fixed, online, updated

BATCHES = (32, 64, 128, 256)
MAP, NAT = "sarcos-map/held-out", "sarcos-nat/held-out"
SGD, SIXTEEN, INVERSE, CG = "sgd, tuned", "infhess, 16 products", "avg-inv", "CG"
LARGE = 10240
RATES = rates(-15, -2)
SIZES = {
    "quick": Size("quick", (MAP,), (32, 256), 40_000, 1, RATES[3:11:2]),
    "default": Size("default", (MAP, NAT), BATCHES, 200_000, 3, RATES),
    "full": Size("full", (MAP, NAT), BATCHES, 4_000_000, 10, RATES),
}
COLOURS = {SGD: plots.ORANGE, PAPER: plots.PURPLE, TUNED: plots.GREEN, SIXTEEN: plots.INK, ONLINE: plots.BLUE}


class AverageInverse(Run):
    """The mean of the least-squares estimates w̃ = B̃⁻¹Φy/|B| of the batches ("avg-inv")."""

    model: nn.Linear
    batches = 0

    def step(self) -> None:
        """One batch: its own solution, the one of least norm if there are many."""
        x, y = next(self.stream)
        w = torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution[:, 0]
        self.batches += 1
        self.model.weight.data += (w - self.model.weight.data) / self.batches


class NoisyConjugateGradients(Run):
    """Plain conjugate gradients, each product with a fresh batch."""

    model: nn.Linear
    r: Tensor | None = None
    p = torch.zeros(0)

    def step(self) -> None:
        """The first batch gives the gradient, each further one a product."""
        x, y = next(self.stream)
        if self.r is None:
            self.r = x.mT @ y / len(x)
            self.p = self.r.clone()
            return
        r, p = self.r, self.p
        Bp = x.mT @ (x @ p) / len(x)
        self.products += 1
        step = r @ r / (p @ Bp)
        self.model.weight.data += step * p
        self.r = r - step * Bp
        self.p = self.r + (self.r @ self.r) / (r @ r) * p


# Baselines of the paper with their own batch sizes, how many budgets they run for, and their dashes.
OTHERS = {
    (INVERSE, 256): (fixed(AverageInverse), 1, "--"),
    (INVERSE, 1024): (fixed(AverageInverse), 1, ":"),
    (CG, 256): (fixed(NoisyConjugateGradients), 1, "-"),
    (CG, LARGE): (fixed(NoisyConjugateGradients), 4, "-."),
}
_RUNS = ConvexExperiment("reproduce-regression", SGD, {SIXTEEN: partial(updated, rank=16), ONLINE: online}, {})
tuning = _RUNS.tuning


def runs(size: Size, rows: Sequence[Row], seeds: Sequence[int]) -> Iterator[Job]:
    """The curves of the figure, at the rates that tuning found; and the other baselines."""
    yield from _RUNS.runs(size, rows, seeds)
    for name in size.problems:
        for (method, batch), (make, longer, _) in OTHERS.items():
            cell = Cell(name, batch, longer * size.budget)
            yield from (_RUNS.comparison(size).job(cell, method, make, Setting(), seed) for seed in seeds)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """What the paper says about Figure 1, checked on the mapped problem (the natural one for comparison)."""
    c = Curves(rows)
    name, cells = _problems(c)[0], [(n, b) for n in _problems(c) for b in _batches(c)]
    gaps = [(_short(n), b, c.final(n, SGD, b), c.final(n, PAPER, b), c.final(n, TUNED, b)) for n, b in cells]
    before = {b: convex_experiment.before_first_step(c, name, b)[0] for b in _batches(c)}
    small, large, paper = c.final(name, INVERSE, 256), c.final(name, INVERSE, 1024), c.final(name, TUNED, 256)
    cg, lowest = c.final(name, CG, 256), min(c.gap(r) for run in c.runs(name, CG, 256) for r in run)
    last, best, cg_large = c.runs(name, CG, LARGE)[0][-1], c.best(name), c.final(name, CG, LARGE)
    train, test = last.loss / best.loss, last.metric / best.metric
    ahead = [c.final(n, ONLINE, b) < min(g[2:]) for (n, b), g in zip(cells, gaps)]
    verdicts = [
        verdict(*(p < s for _, _, s, p, _ in gaps)),
        verdict(*(n <= 32 * b for b, n in before.items())),
        verdict(small > paper, large < small / 10),
        verdict(cg > 1),
        verdict(cg_large < 0.3, test > 1.1 * train),
        verdict(*ahead),
    ]
    return page.claims(
        "regression", verdicts, gaps=gaps, diverged=any(not p < 1 for *_, p, _ in gaps), before=before, small=small,
        large=large, paper=paper, cg=cg, lowest=lowest, cg_large=cg_large, last=last, train=train, test=test, online=ONLINE,
        reached=[(_short(n), b, convex_experiment.to_gaps(c, n, ONLINE, b)) for n, b in cells],
    )  # fmt: skip


def _problems(c: Curves) -> list[str]:
    return [name for name in (MAP, NAT) if name in c.problems]


def _batches(c: Curves) -> list[int]:
    return sorted({r.batch_size for r in c.rows if r.method == SGD})


def _short(name: str) -> str:
    return name.split("/")[0].removeprefix("sarcos-")


def figures(rows: Sequence[Row], folder: Path) -> list[Figure]:
    """One panel per batch size; training loss above, test loss below."""
    c = Curves(rows)
    return [_figure(c, name, folder) for name in _problems(c)]


def _figure(c: Curves, name: str, folder: Path) -> Figure:
    fig, axes = plots.grid(2, len(_batches(c)))
    for (above, below), batch in zip(axes.T, _batches(c)):
        lines = [Line(m, colour, c.runs(name, m, batch)) for m, colour in COLOURS.items()]
        lines += [Line(f"{m}, |B| = {b:,}", plots.GREY, c.runs(name, m, b), d) for (m, b), (_, _, d) in OTHERS.items()]
        for ax, value in ((above, lambda r: r.loss), (below, lambda r: r.metric)):
            lowest = convex_experiment.draw(ax, lines, value, c.best(name))
            ax.set(xscale="log", yscale="log", ylim=(0.95 * lowest, 3))
        above.set_title(f"|B| = {batch}")
        below.set_xlabel("data points read")
    for ax, what in zip(axes[:, 0], ("training loss", "test loss")):
        ax.set_ylabel(what)
    path = plots.save_panels(fig, axes, folder / f"regression-{_short(name)}.svg", columns=5)
    which = "mapped to κ = 1e5" if name == MAP else "as they are"
    what = "training and test loss against data points read, by batch size"
    return Figure(path, f"Figure 1 of the paper on SARCOS, features {which}: {what}.")


def notes(size: Size, seeds: Sequence[int]) -> list[str]:
    """How it was done."""
    return page.notes("regression", size=size, seeds=seeds, tuning_seed=TUNING_SEED)
