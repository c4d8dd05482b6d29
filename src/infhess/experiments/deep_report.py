"""What the paper says of its deep-learning figures, checked on the rows of a run; and the figures themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from infhess.experiments import panels, plots
from infhess.experiments.claims import Claim, verdict
from infhess.experiments.curves import listed
from infhess.experiments.deep import BATCH, OURS, PRINTED, RATE, SGD, STARTS, STEP, TEST, TRAIN, Size
from infhess.experiments.page import Figure
from infhess.experiments.panels import Line
from infhess.experiments.rows import Row

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
        """One list of rows a seed, a row an epoch."""
        name = f"{method}, rate {rate:g}: {what}"
        mine = [r for r in self.rows if r.problem == start and r.method == name]
        return [[r for r in mine if r.seed == seed] for seed in sorted({r.seed for r in mine})]

    def ends(self, start: str, method: str, rate: float, what: str) -> list[Row]:
        """The last row of each seed."""
        return [run[-1] for run in self.runs(start, method, rate, what)]

    def accuracies(self, start: str, method: str) -> dict[float, float]:
        """Test accuracy at the end, by initial rate, the mean over seeds."""
        rates = self.rates(start, method)
        return {rate: mean(r.metric for r in self.ends(start, method, rate, TEST)) for rate in rates}

    def noise(self, start: str) -> float:
        """The standard deviation of test accuracy over seeds, of sgd at its best rate; 2 points where there is one seed."""
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
        _ours(results),
    ]


def _percent(found: dict[float, float]) -> str:
    return listed(f"{rate:g}: {100 * value:.1f} %" for rate, value in found.items())


def _regardless(results: Results, what: str) -> Claim:
    """Preconditioned sgd against sgd with the best of the rates: the mean loss over seeds, for each initial rate."""
    found, holds = [], []
    for start in results.starts:
        ends = {m: {r: _loss(results, start, m, r, what) for r in results.rates(start, m)} for m in (SGD, PRINTED)}
        best = min(ends[SGD].values())
        holds += [
            loss < best + 0.1 and accuracy > CHANCE
            for loss, accuracy in zip(ends[PRINTED].values(), results.accuracies(start, PRINTED).values())
        ]
        by_rate = listed(
            f"{rate:g}: {f'{loss:.2f}' if loss < float('inf') else 'died'}" for rate, loss in ends[PRINTED].items()
        )
        found.append(
            f"{start} initialisation: tuned sgd {best:.2f} (rates {max(ends[SGD].values()):.2f} at worst), "
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
        by = {
            m: [mean(r.metric for r in results.ends(start, m, rate, TRAIN)) for rate in results.rates(start, m)]
            for m in (SGD, PRINTED)
        }
        low, high, tuned = min(by[PRINTED]), max(by[PRINTED]), max(by[SGD])
        shown.append(f"{start} {100 * tuned:.0f} % and {100 * low:.0f} to {100 * high:.0f} %")
    return f"Training accuracy, which has no penalty in it, of tuned sgd and by rate: {listed(shown)}. "


def _loss(results: Results, start: str, method: str, rate: float, what: str) -> float:
    return mean(r.loss for r in results.ends(start, method, rate, what))


def _dead(results: Results) -> str:
    counts = []
    for start in results.starts:
        ends = [
            (test.metric, rate.loss)
            for initial in results.rates(start, PRINTED)
            for test, rate in zip(
                results.ends(start, PRINTED, initial, TEST), results.ends(start, PRINTED, initial, RATE)
            )
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
        last = {
            rate: mean(r.loss for r in results.ends(start, PRINTED, rate, RATE))
            for rate in results.rates(start, PRINTED)
            if all(r.metric >= CHANCE for r in results.ends(start, PRINTED, rate, TEST))
        }
        spread = max(last.values()) / min(last.values()) if last else float("inf")
        holds.append(len(last) == len(results.rates(start, PRINTED)) and spread < 10)
        found.append(
            f"{start}: {listed(f'{rate:g} → {value:.2g}' for rate, value in last.items()) or 'no run is left'}"
        )
    return Claim(
        "Whatever its initial value, the estimated rate follows one trajectory, over four orders of magnitude.",
        f"Initial rate → estimated rate in the last epoch, of runs that are alive: {'; '.join(found)}.",
        verdict(holds),
        ""
        if all(holds)
        else "Within a factor of ten counts as one; rates whose runs died are left out, and do not hold.",
    )


def _step_length(results: Results) -> Claim:
    found, holds = [], []
    for start in results.starts:
        whole, alone = results.accuracies(start, PRINTED), results.accuracies(start, STEP)
        found.append(f"{start}: {_percent(whole)} with directions, {_percent(alone)} without")
        holds.append(abs(mean(whole.values()) - mean(alone.values())) < results.noise(start))
    return Claim(
        "The improvement is mainly due to the adaptive step length.",
        f"Test accuracy by initial rate, the rank-2 directions kept or thrown away: {'; '.join(found)}.",
        verdict(holds),
    )


def _cost(results: Results) -> Claim:
    shares, long = [], []
    for start in results.starts:
        for rate in results.rates(start, PRINTED):
            for run in results.runs(start, PRINTED, rate, RATE):
                last, epochs = run[-1], len(run)
                share = last.metric * last.seconds / max(epochs - 1, 1)  # seconds of one estimate
                step = (1 - last.metric) * last.seconds / (last.data_points / BATCH)
                shares.append(share / (step * last.data_points / BATCH / epochs))
                long.append(share / (step * EPOCH))
    return Claim(
        "Building the rank-2 approximation takes 2–5 % of the time of an epoch.",
        f"{100 * mean(long):.1f} % of an epoch of {EPOCH:,} steps as the paper has it; {100 * mean(shares):.0f} % "
        f"of the short epochs here.",
        verdict([mean(long) < 0.05]),
    )


def _ours(results: Results) -> Claim:
    found, holds = [], []
    for start in results.starts:
        mine, tuned = results.accuracies(start, OURS), max(results.accuracies(start, SGD).values())
        found.append(f"{start}: {_percent(mine)} (tuned sgd {100 * tuned:.1f} %)")
        holds += [value > tuned - results.noise(start) for value in mine.values()]
    return Claim(
        "(not in the paper) A step length that holds for both initialisations.",
        f"Test accuracy of `Preconditioned(SGD)` with `observe`, by the rate that sgd was made with: "
        f"{'; '.join(found)}.",
        verdict(holds),
    )


def figures(rows: Sequence[Row], folder: Path) -> list[Figure]:
    """Figures 3 to 5 and that of the appendix, for each initialisation; and the path of the rate."""
    results = Results(rows)
    return [*(_losses(results, start, folder) for start in results.starts), _paths(results, folder)]


def _losses(results: Results, start: str, folder: Path) -> Figure:
    methods = (SGD, PRINTED, OURS)
    fig, axes = panels.grid(3, len(methods), height=2.4)
    for column, method in zip(axes.T, methods):
        for rate, colour in zip(results.rates(start, SGD), COLOURS):
            for ax, what, accuracy in zip(column, (TRAIN, TEST, TEST), (False, False, True)):
                line = Line(f"initial rate {rate:g}", colour, results.runs(start, method, rate, what))
                panels.draw(ax, line, _points, _accuracy if accuracy else _capped)
        column[0].set_title(method)
        column[2].set_xlabel("data points read")
    for ax, label in zip(axes[:, 0], ("training objective", "test loss", "test accuracy, %")):
        ax.set_ylabel(label)
    path = panels.save(fig, axes, folder / f"deep-{start}.svg", columns=4)
    return Figure(
        path, f"Figures 3, 4 and that of the appendix, {start} initialisation: by initial rate; thin lines are seeds."
    )


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
            for method, dashes in ((PRINTED, "-"), (OURS, "--")):
                label = f"initial rate {rate:g}" if method == PRINTED else ""
                panels.draw(ax, Line(label, colour, results.runs(start, method, rate, RATE), dashes), _points, _capped)
        ax.set(yscale="log", xlabel="data points read", title=f"{start} initialisation")
    axes[0, 0].set_ylabel("rate in use")
    path = panels.save(fig, axes, folder / "deep-rates.svg", columns=4)
    return Figure(path, "Figure 5: the estimated rate by initial value, as printed (solid) and ours (dashed).")


def notes(size: Size, seeds: Sequence[int]) -> list[str]:
    """How it was done."""
    width = "at full width" if size.width == 1 else f"at {size.width:g} of its width"
    return [
        f"The net of the appendix {width}, both initialisations (PyTorch's default and Xavier; the paper does not "
        f"say which it had); "
        f"{size.images:,} images of CIFAR-10 to train, {size.tested:,} to test, standardised by channel; L2 0.01 "
        f"as ½·0.01|w|² in the "
        f"objective; batches of {BATCH}, {size.epochs} epochs, seeds {listed(map(str, seeds))}. The paper has "
        f"50,000 images and 250 epochs: --full.",
        "Preconditioned sgd as printed: layer-wise blocks, rank 2, 10 products to set b0, w0, λ0 (shared) and 5 "
        "of inference at the start of each "
        "epoch but the first, which runs at the initial rate; the step is 1/b0. Training losses are measured on "
        "as many images as test losses.",
        "Data points read count those of the estimates.",
    ]
