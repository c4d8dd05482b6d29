"""What the paper says of its deep-learning figures, checked on the rows of a run; and the figures themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev

from infhess.experiments import page, panels, plots
from infhess.experiments.claims import Claim, verdict
from infhess.experiments.deep_experiment import BATCH, ONLINE, PAPER, RATE, SGD, STARTS, STEP, TEST, TRAIN, NetSize
from infhess.experiments.page import Figure
from infhess.experiments.panels import Line
from infhess.harness.curves import listed
from infhess.harness.rows import Row

CHANCE = 0.115  # accuracy of ten classes by chance, and a little
EPOCH = 1563  # steps of an epoch of the paper
COLOURS = (plots.PURPLE, plots.BLUE, plots.GREEN, plots.ORANGE)


class Results:
    """Rows by initialisation, method, rate and what was measured."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self.starts = [s for s in STARTS if any(r.problem == s for r in rows)]

    def rates(self, start: str, method: str) -> list[float]:
        """Initial rates that were run."""
        names = {r.method for r in self.rows if r.problem == start and r.method.startswith(f"{method}, rate ")}
        return sorted({float(n.removeprefix(f"{method}, rate ").split(":")[0]) for n in names})

    def runs(self, start: str, method: str, rate: float, what: str) -> list[list[Row]]:
        """One list of rows per seed, one row per epoch."""
        name = f"{method}, rate {rate:g}: {what}"
        mine = [r for r in self.rows if r.problem == start and r.method == name]
        return [[r for r in mine if r.seed == seed] for seed in sorted({r.seed for r in mine})]

    def ends(self, start: str, method: str, rate: float, what: str) -> list[Row]:
        """The last row of each seed."""
        return [run[-1] for run in self.runs(start, method, rate, what)]

    def losses(self, start: str, method: str, what: str) -> dict[float, float]:
        """The loss at the end by initial rate, the mean over seeds."""
        rates = self.rates(start, method)
        return {rate: mean(r.loss for r in self.ends(start, method, rate, what)) for rate in rates}

    def accuracies(self, start: str, method: str, what: str = TEST) -> dict[float, float]:
        """The accuracy at the end by initial rate, the mean over seeds."""
        rates = self.rates(start, method)
        return {rate: mean(r.metric for r in self.ends(start, method, rate, what)) for rate in rates}

    def noise(self, start: str) -> float:
        """The standard deviation of test accuracy over seeds, of sgd at its best rate; at least 2 points."""
        found = self.accuracies(start, SGD)
        ends = [r.metric for r in self.ends(start, SGD, max(found, key=lambda r: found[r]), TEST)]
        return max(stdev(ends) if len(ends) > 1 else 0.0, 0.02)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """What the paper says of Figures 3 to 5 and of the appendix."""
    results = Results(rows)
    return [
        _regardless(results, TRAIN),
        _regardless(results, TEST),
        _trajectory(results),
        _step_length(results),
        _cost(results),
        _online(results),
    ]


def _percent(found: dict[float, float]) -> str:
    return listed(f"{rate:g}: {100 * value:.1f} %" for rate, value in found.items())


def _regardless(results: Results, what: str) -> Claim:
    """Preconditioned sgd against sgd with the best of the rates: the mean loss over seeds, for each initial rate."""
    found, holds = [], []
    for start in results.starts:
        sgd, paper = (results.losses(start, m, what) for m in (SGD, PAPER))
        best, accuracies = min(sgd.values()), results.accuracies(start, PAPER)
        holds += [paper[rate] < best + 0.1 and accuracies[rate] > CHANCE for rate in paper]
        by_rate = listed(f"{rate:g}: {f'{x:.2f}' if x < float('inf') else 'died'}" for rate, x in paper.items())
        found.append(
            f"{start} initialisation: tuned sgd {best:.2f} (rates {max(sgd.values()):.2f} at worst), "
            f"preconditioned from {by_rate}"
        )
    words = "training" if what == TRAIN else "test"
    return Claim(
        f"Whatever the initial rate, preconditioned sgd is about as good as well-tuned sgd ({words} loss).",
        "; ".join(found) + ".",
        verdict(holds),
        "" if all(holds) else (_without_penalty(results) if what == TRAIN else "") + _dead(results),
    )


def _without_penalty(results: Results) -> str:
    """Training accuracy: the objective has a penalty in it, which a long step at the start brings down by itself."""
    shown = []
    for start in results.starts:
        sgd, paper = (list(results.accuracies(start, m, TRAIN).values()) for m in (SGD, PAPER))
        shown.append(f"{start} {100 * max(sgd):.0f} % and {100 * min(paper):.0f} to {100 * max(paper):.0f} %")
    return f"Training accuracy, which has no penalty in it, of tuned sgd and by rate: {listed(shown)}. "


def _dead(results: Results) -> str:
    counts = []
    for start in results.starts:
        ends = [
            (test.metric, rate.loss)
            for initial in results.rates(start, PAPER)
            for test, rate in zip(*(results.ends(start, PAPER, initial, what) for what in (TEST, RATE)))
        ]
        dead = [rate for accuracy, rate in ends if accuracy < CHANCE]
        rates = f", estimated rate {min(dead):.2g} to {max(dead):.2g}" if dead else ""
        counts.append(f"{len(dead)} of {len(ends)} with {start} initialisation{rates}")
    return (
        f"Runs that ended at chance: {'; '.join(counts)}. On the plateau of the loss at the start 1/b0 is large, "
        "and the step is too long as soon as the loss begins to curve."
    )


def _trajectory(results: Results) -> Claim:
    found, holds = [], []
    for start in results.starts:
        rates = results.losses(start, PAPER, RATE)
        alive = {r for r in rates if all(end.metric >= CHANCE for end in results.ends(start, PAPER, r, TEST))}
        last = {rate: value for rate, value in rates.items() if rate in alive}
        holds.append(last == rates and max(last.values()) / min(last.values()) < 10)
        shown = listed(f"{rate:g} → {value:.2g}" for rate, value in last.items())
        found.append(f"{start}: {shown or 'no run is left'}")
    why = "Within a factor of ten counts as one; rates whose runs died are left out, and do not hold."
    return Claim(
        "Whatever its initial value, the estimated rate follows one trajectory, over four orders of magnitude.",
        f"Initial rate → estimated rate in the last epoch, of runs that are alive: {'; '.join(found)}.",
        verdict(holds),
        "" if all(holds) else why,
    )


def _step_length(results: Results) -> Claim:
    found, holds = [], []
    for start in results.starts:
        whole, alone = results.accuracies(start, PAPER), results.accuracies(start, STEP)
        found.append(f"{start}: {_percent(whole)} with directions, {_percent(alone)} without")
        holds.append(abs(mean(whole.values()) - mean(alone.values())) < results.noise(start))
    return Claim(
        "The improvement is mainly due to the adaptive step length.",
        f"Test accuracy by initial rate, the rank-2 directions kept or thrown away: {'; '.join(found)}.",
        verdict(holds),
    )


def _cost(results: Results) -> Claim:
    shares = [_shares(run) for run in _estimated(results)]
    long, short = (mean(share) for share in zip(*shares))
    return Claim(
        "Building the rank-2 approximation takes 2–5 % of the time of an epoch.",
        f"{100 * long:.1f} % of an epoch of {EPOCH:,} steps as in the paper; {100 * short:.0f} % of the short epochs here.",
        verdict([long < 0.05]),
    )


def _estimated(results: Results) -> Iterator[list[Row]]:
    for start in results.starts:
        for rate in results.rates(start, PAPER):
            yield from results.runs(start, PAPER, rate, RATE)


def _shares(run: Sequence[Row]) -> tuple[float, float]:
    """Seconds of one estimate over those of an epoch of the paper, and of one here."""
    last, epochs = run[-1], len(run)
    steps = last.data_points / BATCH
    estimate = last.metric * last.seconds / max(epochs - 1, 1)
    step = (1 - last.metric) * last.seconds / steps
    return estimate / (step * EPOCH), estimate / (step * steps / epochs)


def _online(results: Results) -> Claim:
    found, holds = [], []
    for start in results.starts:
        mine, tuned = results.accuracies(start, ONLINE), max(results.accuracies(start, SGD).values())
        found.append(f"{start}: {_percent(mine)} (tuned sgd {100 * tuned:.1f} %)")
        holds += [value > tuned - results.noise(start) for value in mine.values()]
    return Claim(
        "(not in the paper) A step length that holds for both initialisations.",
        f"Test accuracy of `Preconditioned(SGD)` with `observe`, by the rate that sgd was made with: {'; '.join(found)}.",
        verdict(holds),
    )


def figures(rows: Sequence[Row], folder: Path) -> list[Figure]:
    """Figures 3 to 5 and that of the appendix, for each initialisation; and the path of the rate."""
    results = Results(rows)
    return [*(_losses(results, start, folder) for start in results.starts), _paths(results, folder)]


def _losses(results: Results, start: str, folder: Path) -> Figure:
    methods = (SGD, PAPER, ONLINE)
    fig, axes = panels.grid(3, len(methods), height=2.4)
    for column, method in zip(axes.T, methods):
        for rate, colour in zip(results.rates(start, SGD), COLOURS):
            for ax, what, value in zip(column, (TRAIN, TEST, TEST), (_capped, _capped, _accuracy)):
                line = Line(f"initial rate {rate:g}", colour, results.runs(start, method, rate, what))
                panels.draw(ax, line, _points, value)
        column[0].set_title(method)
        column[2].set_xlabel("data points read")
    for ax, label in zip(axes[:, 0], ("training objective", "test loss", "test accuracy, %")):
        ax.set_ylabel(label)
    path = panels.save(fig, axes, folder / f"deep-{start}.svg", columns=4)
    caption = f"Figures 3, 4 and that of the appendix, {start} initialisation: by initial rate; thin lines are seeds."
    return Figure(path, caption)


def _points(row: Row) -> float:
    return row.data_points


def _capped(row: Row) -> float:
    return min(row.loss, 12.0)


def _accuracy(row: Row) -> float:
    return 100 * row.metric


def _paths(results: Results, folder: Path) -> Figure:
    fig, axes = panels.grid(1, len(results.starts), height=3.2)
    for ax, start in zip(axes.flat, results.starts):
        for rate, colour in zip(results.rates(start, SGD), COLOURS):
            for method, dashes, label in ((PAPER, "-", f"initial rate {rate:g}"), (ONLINE, "--", "")):
                panels.draw(ax, Line(label, colour, results.runs(start, method, rate, RATE), dashes), _points, _capped)
        ax.set(yscale="log", xlabel="data points read", title=f"{start} initialisation")
    axes[0, 0].set_ylabel("rate in use")
    path = panels.save(fig, axes, folder / "deep-rates.svg", columns=4)
    return Figure(path, "Figure 5: the estimated rate by initial value, of the paper (solid) and of infhess (dashed).")


def notes(size: NetSize, seeds: Sequence[int]) -> list[str]:
    """How it was done."""
    return page.notes("deep", size=size, seeds=seeds, batch=BATCH)
