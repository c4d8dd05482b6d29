"""The paper's logistic regression: MNIST, 3 against 5, compared with Newton's solution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from infhess_bench.experiments import convex_experiment, page, plots
from infhess_bench.experiments.convex_experiment import ONLINE, PAPER, TUNED, ConvexExperiment, Size, rates
from infhess_bench.experiments.page import Claim, Figure, verdict
from infhess_bench.experiments.plots import Line
from infhess_bench.harness import TUNING_SEED, Curves, Method, Row, Training, online, updated
from infhess_bench.harness.methods import paper_optimizer

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
    """SGD at η α², α² = Σ₁/Σ_k of the paper's preconditioner, but without the preconditioner."""

    def step(self) -> None:
        """One batch; before the first one, the estimate."""
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
    """What the paper says about Figure 2."""
    c = Curves(rows)
    ends = {m: c.final(NAME, m, BATCH) for m in COLOURS}
    last = {m: [run[-1].metric for run in c.runs(NAME, m, BATCH)] for m in (SGD, PAPER, TUNED, ONLINE)}
    near = c.best(NAME).metric - 0.01
    early = {m: c.first(NAME, m, BATCH, lambda r: r.metric >= near, lambda r: r.data_points) for m in last}
    worst = [max(c.gap(r) for r in run) for run in c.runs(NAME, INDUCED, BATCH)]
    before, share = convex_experiment.before_first_step(c, NAME, BATCH)
    verdicts = [
        verdict(ends[PAPER] < ends[SGD], ends[TUNED] < ends[SGD]),
        verdict(early[PAPER] < early[SGD], early[TUNED] < early[SGD]),
        verdict(max(worst) > 1, ends[INDUCED] > 2 * ends[SGD]),
        verdict(share < 0.05),
        verdict(*(ends[ONLINE] < ends[m] for m in (SGD, PAPER, TUNED))),
    ]
    return page.claims(
        "logistic", verdicts, sgd=SGD, paper=PAPER, tuned=TUNED, induced=INDUCED, ends=ends, early=early, worst=worst,
        exact=100 * c.best(NAME).metric, accuracies={m: 100 * sum(v) / len(v) for m, v in last.items()},
        before=before, share=share, tenth=c.points_to(NAME, TUNED, BATCH, 0.1),
        reached={m: convex_experiment.to_gaps(c, NAME, m, BATCH) for m in (SGD, TUNED, UPDATED, ONLINE)},
    )  # fmt: skip


def figures(rows: Sequence[Row], folder: Path) -> list[Figure]:
    """Two panels: training loss and test accuracy."""
    c = Curves(rows)
    fig, axes = plots.grid(2, 1, height=3.2)
    (above,), (below,) = axes
    lines = [Line(method, colour, c.runs(NAME, method, BATCH)) for method, colour in COLOURS.items()]
    loss = convex_experiment.draw(above, lines, lambda r: r.loss, c.best(NAME))
    convex_experiment.draw(below, lines, lambda r: 100 * r.metric, c.best(NAME))
    above.set(xscale="log", yscale="log", ylim=(0.97 * loss, 1.5), ylabel="training loss")
    below.set(ylim=(88, 98), ylabel="test accuracy, %", xlabel="data points read")
    fig.set_size_inches(7, 7.5)
    caption = "Figure 2 of the paper: MNIST, 3 against 5; training loss and test accuracy against data points read."
    return [Figure(plots.save_panels(fig, axes, folder / "logistic.svg", columns=2), caption)]


def notes(size: Size, seeds: Sequence[int]) -> list[str]:
    """How it was done."""
    return page.notes("logistic", size=size, seeds=seeds, batch=BATCH, tuning_seed=TUNING_SEED)
