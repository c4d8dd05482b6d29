"""The demo: scikit-learn's digits, 3 against 5: sgd with the best of nine rates, and infhess with none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from infhess.data import digits
from infhess.harness.methods import online, sgd
from infhess.harness.rows import Row
from infhess.harness.training import AVERAGED, curve
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
