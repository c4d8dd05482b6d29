"""Convex problems that `minimize` was not developed on: named before its first run on them, for `bench convex --accuracy`.

There are two exceptions, made after their first report: L-BFGS around a factored P, and its price, were developed on
wide-softmax; the caution about pool-Newton (predicted at half of dense Newton's cost) comes from badly-scaled.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from infhess_bench.data import sarcos
from infhess_bench.problems.convex_problems import ConvexProblem, huber, logistic, poisson, softmax
from infhess_bench.problems.features import constant, polynomial, signs, standardised


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _normal(rows: int, columns: int, g: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=g, dtype=torch.float64)


def _turned(n: int, spectrum: Tensor, g: torch.Generator) -> Tensor:
    """Normal features whose covariance has this spectrum, in a random basis."""
    d = len(spectrum)
    Q: Tensor = torch.linalg.qr(_normal(d, d, g)).Q
    return _normal(n, d, g) @ (spectrum.sqrt()[:, None] * Q.mT)


def _labels(f: Tensor, g: torch.Generator) -> Tensor:
    """±1 with odds e^f."""
    return signs(torch.rand(len(f), generator=g, dtype=f.dtype) < torch.sigmoid(f))


def tall_logistic(n: int) -> ConvexProblem:
    """Logistic regression on n points, 200 features with a covariance of condition 1e6, l2 = 1e-6."""
    g = _seeded(1)
    spectrum = torch.logspace(2, -4, 200, dtype=torch.float64)
    x = _turned(n, spectrum, g)
    f = x @ _normal(200, 1, g)[:, 0]
    return ConvexProblem((x, _labels(2 * f / f.std(), g)), logistic, 1e-6)


def wide_softmax() -> ConvexProblem:
    """Twelve classes, 500 features and a constant, 20,000 points: 6,012 weights, l2 = 1e-5."""
    g = _seeded(2)
    x = torch.cat([_turned(20_000, torch.logspace(1, -2, 500, dtype=torch.float64), g), torch.ones(20_000, 1)], 1)
    scores = x @ _normal(501, 12, g) / 4
    y = torch.multinomial(torch.softmax(scores, 1), 1, generator=g)[:, 0]
    return ConvexProblem((x, y), softmax, 1e-5, outputs=12)


def counts() -> ConvexProblem:
    """Poisson regression, e^f − y f: 100,000 counts of mean about 2, 60 correlated features and a constant."""
    g = _seeded(3)
    x = standardised(_turned(100_000, torch.logspace(1, -3, 60, dtype=torch.float64), g))
    x = torch.cat([x, constant(x)], 1)
    f = x[:, :-1] @ _normal(60, 1, g)[:, 0]
    rates = torch.exp(f / f.std() / 2 + 0.5)
    return ConvexProblem((x, torch.poisson(rates, generator=g)), poisson, 1e-6)


def robust_torque() -> ConvexProblem:
    """Huber's loss on SARCOS, torque 3, 253 polynomial features; every twentieth target is off by ten standard deviations."""
    g = _seeded(4)
    x, torques = sarcos()
    features = standardised(polynomial(standardised(x)))
    y = standardised(torques[:, 2:3])[:, 0]
    wrong = torch.rand(len(y), generator=g) < 0.05
    return ConvexProblem((torch.cat([constant(x), features], 1), y + 10 * wrong.to(y)), huber, 1e-6)


def badly_scaled() -> ConvexProblem:
    """Logistic regression, 50,000 points, 300 features in units from 1 to 1e-5 (κ = 1e10), of equal importance; no l2."""
    g = _seeded(5)
    z = _normal(50_000, 300, g)
    y = _labels(2 * z @ _normal(300, 1, g)[:, 0] / 300**0.5, g)
    return ConvexProblem((z * torch.logspace(0, -5, 300, dtype=z.dtype), y), logistic)


UNSEEN: dict[str, Callable[[], ConvexProblem]] = {
    "counts": counts,
    "robust-torque": robust_torque,
    "badly-scaled": badly_scaled,
    "wide-softmax": wide_softmax,
    "tall-logistic": lambda: tall_logistic(1_000_000),
    "tall-logistic/quick": lambda: tall_logistic(200_000),
}
