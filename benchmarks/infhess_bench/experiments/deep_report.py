"""What the paper says about its deep-learning figures, checked on the rows of a run; and the figures themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

from infhess_bench.experiments import deep_experiment, page, plots
from infhess_bench.experiments.deep_experiment import (
    BATCH,
    ONLINE,
    PAPER,
    RATE,
    SGD,
    STARTS,
    STEP,
    TEST,
    TRAIN,
    NetSize,
)
from infhess_bench.experiments.page import Claim, Figure, verdict
from infhess_bench.experiments.plots import Line
from infhess_bench.harness import Curves, Row

CHANCE = 0.115  # accuracy of ten classes by chance, plus a margin
EPOCH = 1563  # steps per epoch in the paper
ByStart = dict[str, dict[float, float]]
COLOURS = (plots.PURPLE, plots.BLUE, plots.GREEN, plots.ORANGE)


class Results:
    """Rows by initialisation, method, rate and what was measured."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.curves = Curves(rows)
        self.starts = [s for s in STARTS if s in self.curves.problems]

    def rates(self, start: str, method: str) -> list[float]:
        """Initial rates that were run."""
        names = [m.partition(f"{method}, rate ") for m in self.curves.methods(start, BATCH)]
        return sorted({float(after.split(":")[0]) for before, found, after in names if found and not before})

    def runs(self, start: str, method: str, rate: float, what: str) -> list[list[Row]]:
        """One list of rows per seed, one row per epoch."""
        return self.curves.runs(start, deep_experiment.name_of(method, rate, what), BATCH)

    def means(self, method: str, what: str, value: str) -> ByStart:
        """Loss or metric at the end by initialisation and initial rate, mean over seeds."""

        def end(start: str, rate: float) -> float:
            return float(mean(getattr(run[-1], value) for run in self.runs(start, method, rate, what)))

        return {start: {rate: end(start, rate) for rate in self.rates(start, method)} for start in self.starts}

    def outcomes(self, start: str, rate: float) -> list[tuple[float, float]]:
        """Test accuracy and estimated rate at the end of the paper's method, one pair per seed."""
        tests, rates = (self.runs(start, PAPER, rate, what) for what in (TEST, RATE))
        return [(test[-1].metric, rate[-1].loss) for test, rate in zip(tests, rates)]

    def noise(self, start: str) -> float:
        """The standard deviation of test accuracy over seeds, for SGD at its best rate; at least 2 points."""
        found = self.means(SGD, TEST, "metric")[start]
        ends = [run[-1].metric for run in self.runs(start, SGD, max(found, key=lambda r: found[r]), TEST)]
        return max(stdev(ends) if len(ends) > 1 else 0.0, 0.02)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """What the paper says about Figures 3 to 5 and about the appendix."""
    results = Results(rows)
    starts, noise = results.starts, {s: results.noise(s) for s in results.starts}
    sgd, paper = ({what: results.means(m, what, "loss") for what in (TRAIN, TEST)} for m in (SGD, PAPER))
    methods = {"sgd": SGD, "paper": PAPER, "step": STEP, "online": ONLINE}
    trained, tested = ({k: results.means(m, what, "metric") for k, m in methods.items()} for what in (TRAIN, TEST))
    ends = {s: {r: results.outcomes(s, r) for r in results.rates(s, PAPER)} for s in starts}
    died = {s: [rate for found in ends[s].values() for accuracy, rate in found if accuracy < CHANCE] for s in starts}
    alive = {s: {r: mean(x for _, x in e) for r, e in ends[s].items() if min(e)[0] >= CHANCE} for s in starts}
    runs = [run for s in starts for rate in ends[s] for run in results.runs(s, PAPER, rate, RATE)]
    long, short = (mean(share) for share in zip(*map(_shares, runs)))
    mine, step = ({s: mean(tested[k][s].values()) for s in starts} for k in ("paper", "step"))
    settled = (len(alive[s]) == len(ends[s]) and max(alive[s].values()) < 10 * min(alive[s].values()) for s in starts)
    verdicts = [
        *(verdict(*_level(sgd[what], paper[what], tested["paper"])) for what in (TRAIN, TEST)),
        verdict(*settled),
        verdict(*(abs(mine[s] - step[s]) < noise[s] for s in starts)),
        verdict(long < 0.05),
        verdict(*(x > max(tested["sgd"][s].values()) - noise[s] for s in starts for x in tested["online"][s].values())),
    ]
    return page.claims(
        "deep", verdicts, starts=starts, sgd=sgd, paper=paper, trained=trained, tested=tested, alive=alive, lost=died,
        runs={s: sum(map(len, ends[s].values())) for s in starts}, infinity=math.inf, long=long, short=short, epoch=EPOCH,
    )  # fmt: skip


def _level(sgd: ByStart, paper: ByStart, accuracies: ByStart) -> Iterator[bool]:
    """Whether the paper's method is about as good as SGD at its best rate, for each initial rate."""
    for start, losses in paper.items():
        best = min(sgd[start].values())
        yield from (loss < best + 0.1 and accuracies[start][rate] > CHANCE for rate, loss in losses.items())


def _shares(run: Sequence[Row]) -> tuple[float, float]:
    """Seconds of one estimate over those of an epoch in the paper, and of one here."""
    last, epochs = run[-1], len(run)
    steps = last.data_points / BATCH
    estimate = last.metric * last.seconds / max(epochs - 1, 1)
    step = (1 - last.metric) * last.seconds / steps
    return estimate / (step * EPOCH), estimate / (step * steps / epochs)


def figures(rows: Sequence[Row], folder: Path) -> list[Figure]:
    """Figures 3 to 5 and that of the appendix, for each initialisation; and the path of the rate."""
    results = Results(rows)
    return [*(_losses(results, start, folder) for start in results.starts), _paths(results, folder)]


def _losses(results: Results, start: str, folder: Path) -> Figure:
    methods = (SGD, PAPER, ONLINE)
    fig, axes = plots.grid(3, len(methods), height=2.4)
    for column, method in zip(axes.T, methods):
        for rate, colour in zip(results.rates(start, SGD), COLOURS):
            for ax, what, value in zip(column, (TRAIN, TEST, TEST), (_capped, _capped, lambda r: 100 * r.metric)):
                line = Line(f"initial rate {rate:g}", colour, results.runs(start, method, rate, what))
                plots.draw(ax, line, value)
        column[0].set_title(method)
        column[2].set_xlabel("data points read")
    for ax, label in zip(axes[:, 0], ("training objective", "test loss", "test accuracy, %")):
        ax.set_ylabel(label)
    path = plots.save_panels(fig, axes, folder / f"deep-{start}.svg", columns=4)
    caption = f"Figures 3, 4 and that of the appendix, {start} initialisation: by initial rate; bands span the seeds."
    return Figure(path, caption)


def _capped(row: Row) -> float:
    return min(row.loss, 12.0)


def _paths(results: Results, folder: Path) -> Figure:
    fig, axes = plots.grid(1, len(results.starts), height=3.2)
    for ax, start in zip(axes.flat, results.starts):
        for rate, colour in zip(results.rates(start, SGD), COLOURS):
            for method, dashes, label in ((PAPER, "-", f"initial rate {rate:g}"), (ONLINE, "--", "")):
                plots.draw(ax, Line(label, colour, results.runs(start, method, rate, RATE), dashes), _capped)
        ax.set(yscale="log", xlabel="data points read", title=f"{start} initialisation")
    axes[0, 0].set_ylabel("rate in use")
    path = plots.save_panels(fig, axes, folder / "deep-rates.svg", columns=4)
    return Figure(path, "Figure 5: the estimated rate by initial value, of the paper (solid) and of infhess (dashed).")


def notes(size: NetSize, seeds: Sequence[int]) -> list[str]:
    """How it was done."""
    return page.notes("deep", size=size, seeds=seeds, batch=BATCH)
