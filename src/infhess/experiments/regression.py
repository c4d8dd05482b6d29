"""The paper's regression experiment: SARCOS, 253 features, four batch sizes, against an exact solution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

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
from infhess.experiments.regression_baselines import average_inverse, conjugate_gradients
from infhess.harness.comparison import TUNING_SEED, Cell
from infhess.harness.curves import Curves, listed
from infhess.harness.jobs import Job
from infhess.harness.methods import Setting, online, updated
from infhess.harness.rows import Row

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
# Baselines of the paper with batch sizes of their own, how many budgets they run for, and their dashes.
OTHERS = {
    (INVERSE, 256): (average_inverse, 1, "--"),
    (INVERSE, 1024): (average_inverse, 1, ":"),
    (CG, 256): (conjugate_gradients, 1, "-"),
    (CG, LARGE): (conjugate_gradients, 4, "-."),
}
_RUNS = ConvexExperiment("reproduce-regression", SGD, {SIXTEEN: partial(updated, rank=16), ONLINE: online}, {})
tuning = _RUNS.tuning


def runs(size: Size, rows: Sequence[Row], seeds: Sequence[int]) -> Iterator[Job]:
    """The curves of the figure, with the rates that tuning found; and the other baselines."""
    yield from _RUNS.runs(size, rows, seeds)
    for name in size.problems:
        for (method, batch), (make, longer, _) in OTHERS.items():
            cell = Cell(name, batch, longer * size.budget)
            yield from (_RUNS.comparison(size).job(cell, method, make, Setting(), seed) for seed in seeds)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """What the paper says of Figure 1, checked on the mapped problem (the natural one beside it)."""
    c = Curves(rows)
    names, batches = _problems(c), _batches(c)
    return [
        _faster(c, names, batches),
        _small_cost(c, names[0], batches),
        _average_inverse(c, names[0]),
        _cg_small(c, names[0]),
        _cg_large(c, names[0]),
        _online(c, names, batches),
    ]


def _problems(c: Curves) -> list[str]:
    return [name for name in (MAP, NAT) if any(r.problem == name for r in c.rows)]


def _batches(c: Curves) -> list[int]:
    return sorted({r.batch_size for r in c.rows if r.method == SGD})


def _faster(c: Curves, names: Sequence[str], batches: Sequence[int]) -> Claim:
    cells = [(n, b, c.final(n, SGD, b), c.final(n, PAPER, b), c.final(n, TUNED, b)) for n in names for b in batches]
    found = listed(f"{_short(n)} at {b}: {s:.2g} → {p:.2g} ({t:.2g})" for n, b, s, p, t in cells)
    why = (
        "α² multiplies a rate that is already near sgd's stability limit: where the largest eigenvalues are not found "
        "well enough, the step is too long, and the run diverges."
    )
    return Claim(
        "Preconditioned sgd with 16 iterations of inference makes faster progress than sgd at all four batch sizes.",
        f"Gap at the end, sgd → the paper's method at sgd's rate (with a rate of its own): {found}.",
        verdict([p < s for _, _, s, p, _ in cells]),
        why if any(not p < 1 for *_, p, _ in cells) else "",
    )


def _small_cost(c: Curves, name: str, batches: Sequence[int]) -> Claim:
    points = {b: before_first_step(c, name, b)[0] for b in batches}
    return Claim(
        "Building the preconditioner takes 16·|B| data points, a minuscule fraction of the run.",
        f"Read before the first step: {listed(f'{n:,} at batch {b}' for b, n in points.items())}.",
        verdict([n <= 32 * b for b, n in points.items()]),
        "Beside one batch for each of the 16 iterations there are those of the first gradients, from which b0, w0 and λ0 "
        "are set.",
    )


def _average_inverse(c: Curves, name: str) -> Claim:
    small, large, paper = c.final(name, INVERSE, 256), c.final(name, INVERSE, 1024), c.final(name, TUNED, 256)
    why = "At 1,024 points for 253 weights a batch is solved nearly by itself, and the average of such solutions is ahead."
    return Claim(
        "Averaged inverses of batches (avg-inv, |B| = 256) do much worse, unless the batch size is increased.",
        f"Gap at the end {small:.2g} at 256 and {large:.2g} at 1,024; the paper's preconditioned sgd {paper:.2g}.",
        verdict([small > paper, large < small / 10]),
        why if large < paper else "",
    )


def _cg_small(c: Curves, name: str) -> Claim:
    end, lowest = c.final(name, CG, 256), min(c.gap(r) for run in c.runs(name, CG, 256) for r in run)
    return Claim(
        "CG on products of |B| = 256 is unstable and diverges in the first few steps.",
        f"Gap at the end {end:.2g}; it never falls below {lowest:.2f}.",
        verdict([end > 1]),
    )


def _cg_large(c: Curves, name: str) -> Claim:
    last, best, end = c.runs(name, CG, LARGE)[0][-1], c.best(name), c.final(name, CG, LARGE)
    train, test = last.loss / best.loss, last.metric / best.metric
    why = "Training and test loss go down together: with 40,035 rows for 253 weights there is little to over-fit."
    return Claim(
        "With |B| > 10,000 CG converges reasonably on the training objective, but does poorly on the test set.",
        f"At {LARGE:,} points per product the gap is {end:.2g} after {last.data_points:,} points; "
        f"loss relative to the exact solution: training {train:.2f}, test {test:.2f}.",
        verdict([end < 0.3, test > 1.1 * train]),
        "" if test > 1.1 * train else why,
    )


def _online(c: Curves, names: Sequence[str], batches: Sequence[int]) -> Claim:
    cells = [(n, b) for n in names for b in batches]
    found = (f"{_short(n)} at {b}: {to_gaps(c, n, ONLINE, b)}" for n, b in cells)
    return Claim(
        "(not in the paper) The same idea with a better prior, a measured step and no rate to choose.",
        f"Data points to a gap of 1e-1 / 1e-2 / 1e-3, {ONLINE}: {'; '.join(found)}.",
        verdict([c.final(n, ONLINE, b) < min(c.final(n, m, b) for m in (SGD, PAPER, TUNED)) for n, b in cells]),
    )


def _short(name: str) -> str:
    return name.split("/")[0].removeprefix("sarcos-")


def figures(rows: Sequence[Row], folder: Path) -> list[Figure]:
    """One panel per batch size; training loss above, test loss below."""
    c = Curves(rows)
    return [_figure(c, name, folder) for name in _problems(c)]


def _figure(c: Curves, name: str, folder: Path) -> Figure:
    batches = _batches(c)
    fig, axes = panels.grid(2, len(batches))
    for (above, below), batch in zip(axes.T, batches):
        lines = [Line(m, colour, c.runs(name, m, batch)) for m, colour in COLOURS.items()]
        lines += [Line(f"{m}, |B| = {b:,}", plots.GREY, c.runs(name, m, b), d) for (m, b), (_, _, d) in OTHERS.items()]
        for ax, value in ((above, lambda r: r.loss), (below, lambda r: r.metric)):
            ax.set(xscale="log", yscale="log", ylim=(0.95 * draw(ax, lines, value, c.best(name)), 3))
        above.set_title(f"|B| = {batch}")
        below.set_xlabel("data points read")
    for ax, what in zip(axes[:, 0], ("training loss", "test loss")):
        ax.set_ylabel(what)
    path = panels.save(fig, axes, folder / f"regression-{_short(name)}.svg", columns=5)
    what = "features mapped to κ = 1e5" if name == MAP else "features as they are"
    caption = (
        f"Figure 1 of the paper on SARCOS, {what}: training and test loss against data points read, by batch size."
    )
    return Figure(path, caption)


def notes(size: Size, seeds: Sequence[int]) -> list[str]:
    """How it was done."""
    return page.notes("regression", size=size, seeds=seeds, tuning_seed=TUNING_SEED)
