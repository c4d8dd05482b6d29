"""The demo: scikit-learn's digits, 3 against 5: sgd with the best of nine rates, and infhess with none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from infhess.data import digits
from infhess.experiments import plots
from infhess.harness import AVERAGED, Row, curve, online, sgd
from infhess.problems.convex_problems import ConvexProblem, logistic
from infhess.problems.features import constant, signs

EXPERIMENT, PROBLEM, BATCH, POINTS, L2 = "demo", "digits 3 against 5", 32, 22_000, 1e-4
RATES = tuple(10 ** (i / 2) for i in range(-5, 4))
ONLINE = "infhess, online"
GAPS = (1e-1, 1e-2, 1e-3)


def problem() -> ConvexProblem:
    """Logistic regression with a little regularisation: 365 images of 8×8 pixels and a constant."""
    images, labels = digits()
    keep = (labels == 3) | (labels == 5)
    data = torch.cat([images[keep].reshape(-1, 64) / 16, constant(images[keep])], 1), signs(labels[keep] == 3)
    return ConvexProblem(data, logistic, L2, test=data)


def rows(seed: int) -> Iterator[Row]:
    """A curve for each rate of sgd, and infhess: the gap of the iterates' average, and its accuracy."""
    data = problem()
    best, start = data.value(data.solved()), data.value(data.model())
    methods = {f"sgd, rate {rate:.2g}": sgd(rate) for rate in RATES} | {ONLINE: online()}
    for name, method in methods.items():
        for row in curve(data, method, Row(EXPERIMENT, PROBLEM, name, seed, BATCH), POINTS, (AVERAGED,)):
            yield replace(row, loss=(row.loss - best) / (start - best))


def best_rate(found: Sequence[Row]) -> str:
    """The rate of sgd that ends nearest to the optimum."""
    last = {r.method: r.loss for r in found if r.method != ONLINE}
    return min(last, key=lambda method: last[method] if last[method] == last[method] else float("inf"))


def reached(found: Sequence[Row], *, online: bool) -> list[int | None]:
    """Data points read when the gap first fell below each of GAPS; by sgd with the rate that is the best for that gap."""
    mine = [r for r in found if (r.method == ONLINE) is online]
    return [min((r.data_points for r in mine if r.loss < gap), default=None) for gap in GAPS]


def figure(rows: Sequence[Row], path: Path) -> Path:
    """The gap against data points read: all rates of sgd, its best one, and infhess."""
    best, (fig, ax) = best_rate(rows), plots.figure()
    for method in dict.fromkeys(r.method for r in rows):
        x, y = zip(*((r.data_points, max(r.loss, 1e-12)) for r in rows if r.method == method))
        known = {best: (plots.ORANGE, f"{best}, the best of nine"), ONLINE: (plots.BLUE, ONLINE)}
        colour, label = known.get(method, (plots.GREY, None))
        ax.plot(x, y, color=colour, label=label, linewidth=2 if label else 0.8, alpha=1.0 if label else 0.6)
    ax.set(xscale="log", yscale="log", ylim=(1e-6, 2))
    ax.set(xlabel="data points read", ylabel="gap to the optimum (L − L*)/(L₀ − L*)")
    ax.set_title(f"Logistic regression, {rows[0].problem}", loc="left")
    ax.legend(frameon=False)
    return plots.save(fig, path)
