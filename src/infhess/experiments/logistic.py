"""The paper's logistic regression: MNIST, 3 against 5, against Newton's solution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from infhess.experiments import page, panels, plots
from infhess.experiments.claims import Claim, verdict
from infhess.experiments.convex_experiment import (
    ONLINE,
    PAPER,
    TUNED,
    ConvexExperiment,
    Size,
    before_first_step,
    draw,
    rates,
    to_gaps,
)
from infhess.experiments.page import Figure
from infhess.experiments.panels import Line
from infhess.harness.comparison import TUNING_SEED
from infhess.harness.curves import Curves, listed, shown
from infhess.harness.methods import online, paper_optimizer, updated
from infhess.harness.rows import Row
from infhess.harness.training import Method, Training

NAME, BATCH = "mnist-3v5", 256
SGD, INDUCED, UPDATED = "sgd, best step", "sgd, the step induced by the preconditioner", "infhess, update"
RATES = rates(-6, 4)
SIZES = {
    "quick": Size("quick", (NAME,), (BATCH,), 40_000, 1, RATES[::2]),
    "default": Size("default", (NAME,), (BATCH,), 300_000, 5, RATES),
    "full": Size("full", (NAME,), (BATCH,), 6_000_000, 10, RATES),
}
COLOURS = {
    SGD: plots.ORANGE, INDUCED: plots.GREY, PAPER: plots.PURPLE, TUNED: plots.GREEN, UPDATED: plots.INK, ONLINE: plots.BLUE,
}  # fmt: skip


class Induced(Training):
    """sgd at η α², α² = Σ₁/Σ_k of the paper's preconditioner, and without the preconditioner."""

    def step(self) -> None:
        """One batch; before the first, the estimate."""
        if not self.products:
            group = self.optimizer.param_groups[0]
            estimating = paper_optimizer(list(self.model.parameters()), group["lr"])
            report = estimating.update(self.loss, self.stream)
            self.count(report)
            group["lr"] *= float(report.values[0] / report.values[-1])
        super().step()


def induced(rate: float) -> Method:
    """The paper's step without the paper's preconditioner."""
    return partial(Induced, make=lambda p: torch.optim.SGD(p, lr=rate))


_RUNS = ConvexExperiment("reproduce-logistic", SGD, {UPDATED: updated, ONLINE: online}, {INDUCED: induced})
tuning, runs = _RUNS.tuning, _RUNS.runs


def claims(rows: Sequence[Row]) -> list[Claim]:
    """What the paper says of Figure 2."""
    c = Curves(rows)
    return [_faster(c), _accuracy(c), _unstable(c), _small_cost(c), _online(c)]


def _faster(c: Curves) -> Claim:
    ends = {m: c.final(NAME, m, BATCH) for m in (SGD, PAPER, TUNED)}
    why = "sgd's best step is at its stability limit already, and α² makes it longer; with a rate of its own it is "
    why += "ahead." if ends[TUNED] < ends[SGD] else "behind as well."
    return Claim(
        "Preconditioned sgd makes faster progress on the training loss than sgd with its best step.",
        f"Gap at the end: {listed(f'{m}: {end:.2g}' for m, end in ends.items())}.",
        verdict([ends[PAPER] < ends[SGD], ends[TUNED] < ends[SGD]]),
        "" if ends[PAPER] < ends[SGD] else why,
    )


def _accuracy(c: Curves) -> Claim:
    ends = {m: [run[-1].metric for run in c.runs(NAME, m, BATCH)] for m in (SGD, PAPER, TUNED, ONLINE)}
    mean = {m: 100 * sum(v) / len(v) for m, v in ends.items()}
    exact = c.best(NAME).metric
    early = {m: c.first(NAME, m, BATCH, lambda r: r.metric >= exact - 0.01, lambda r: r.data_points) for m in ends}
    return Claim(
        "The test accuracy rises faster too.",
        f"Data points to within a point of Newton's {100 * exact:.1f} %: "
        f"{listed(f'{m}: {shown(n)}' for m, n in early.items())}; "
        f"at the end {listed(f'{m}: {v:.1f} %' for m, v in mean.items())}.",
        verdict([early[PAPER] < early[SGD], early[TUNED] < early[SGD]]),
    )


def _unstable(c: Curves) -> Claim:
    worst = [max(c.gap(r) for r in run) for run in c.runs(NAME, INDUCED, BATCH)]
    best, end = c.final(NAME, SGD, BATCH), c.final(NAME, INDUCED, BATCH)
    return Claim(
        "sgd with the step that the preconditioner induces is unstable.",
        f"Gap at the end {end:.2g} (best step: {best:.2g}); the largest on the way, by seed: "
        f"{listed(f'{w:.2g}' for w in worst)}.",
        verdict([max(worst) > 1, end > 2 * best]),
    )


def _small_cost(c: Curves) -> Claim:
    points, share = before_first_step(c, NAME, BATCH)
    return Claim(
        "Computing the preconditioner takes a small fraction of the run.",
        f"{points:,} points are read before the first step, {100 * share:.1f} % of the run; a gap of 1e-1 takes "
        f"{shown(c.points_to(NAME, TUNED, BATCH, 0.1))}.",
        verdict([share < 0.05]),
    )


def _online(c: Curves) -> Claim:
    cells = (f"{m}: {to_gaps(c, NAME, m, BATCH)}" for m in (SGD, TUNED, UPDATED, ONLINE))
    return Claim(
        "(not in the paper) The same idea with a better prior, a measured step and refreshes, and no rate to choose.",
        f"Data points to a gap of 1e-1 / 1e-2 / 1e-3: {'; '.join(cells)}.",
        verdict([c.final(NAME, ONLINE, BATCH) < c.final(NAME, m, BATCH) for m in (SGD, PAPER, TUNED)]),
    )


def figures(rows: Sequence[Row], folder: Path) -> list[Figure]:
    """Two panels: training loss and test accuracy."""
    c = Curves(rows)
    fig, axes = panels.grid(2, 1, height=3.2)
    (above,), (below,) = axes
    lines = [Line(method, colour, c.runs(NAME, method, BATCH)) for method, colour in COLOURS.items()]
    loss = draw(above, lines, lambda r: r.loss, c.best(NAME))
    draw(below, lines, lambda r: 100 * r.metric, c.best(NAME))
    above.set(xscale="log", yscale="log", ylim=(0.97 * loss, 1.5), ylabel="training loss")
    below.set(ylim=(88, 98), ylabel="test accuracy, %", xlabel="data points read")
    fig.set_size_inches(7, 7.5)
    caption = "Figure 2 of the paper: MNIST, 3 against 5; training loss and test accuracy against data points read."
    return [Figure(panels.save(fig, axes, folder / "logistic.svg", columns=2), caption)]


def notes(size: Size, seeds: Sequence[int]) -> list[str]:
    """How it was done."""
    return page.notes("logistic", size=size, seeds=seeds, batch=BATCH, tuning_seed=TUNING_SEED)
