"""The demo: scikit-learn's digits, 3 against 5: sgd with the best of nine rates, and preconditioned sgd with none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from infhess.data import digits
from infhess.experiments.rows import Row
from infhess.optim import Preconditioned

EXPERIMENT, PROBLEM, BATCH, EPOCHS, L2 = "demo", "digits 3 against 5", 32, 60, 1e-4
RATES = tuple(10 ** (i / 2) for i in range(-5, 4))
OURS = "preconditioned sgd, no rate"
GAPS = (1e-1, 1e-2, 1e-3)


@dataclass(frozen=True)
class Digits:
    """Logistic regression with a little regularisation, and its optimum by Newton's method."""

    x: Tensor
    y: Tensor  # ±1
    best: float

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The mean over a batch."""
        weights = torch.cat([p.reshape(-1) for p in model.parameters()])
        return nn.functional.softplus(-batch[1] * model(batch[0])[:, 0]).mean() + L2 / 2 * weights.square().sum()

    def gap(self, model: nn.Module) -> tuple[float, float]:
        """(L − L*)/(L₀ − L*) over all the data, and the accuracy."""
        with torch.no_grad():
            value = float(self.loss(model, (self.x, self.y)))
            accuracy = float((model(self.x)[:, 0] * self.y > 0).double().mean())
        return (value - self.best) / (torch.tensor(2.0).log().item() - self.best), accuracy


def problem() -> Digits:
    """365 images of 8×8 pixels and a constant."""
    images, labels = digits()
    keep = (labels == 3) | (labels == 5)
    x = torch.cat([images[keep].reshape(-1, 64) / 16, torch.ones(int(keep.sum()), 1, dtype=images.dtype)], 1)
    y = torch.where(labels[keep] == 3, 1.0, -1.0).to(x)
    w, eye = torch.zeros(65, dtype=x.dtype), torch.eye(65, dtype=x.dtype)
    for _ in range(20):
        p = torch.sigmoid(-y * (x @ w))
        H = (x * (p * (1 - p))[:, None]).mT @ x / len(x) + L2 * eye
        w = w - torch.linalg.solve(H, L2 * w - x.mT @ (y * p) / len(x))
    best = nn.functional.softplus(-y * (x @ w)).mean() + L2 / 2 * w.square().sum()
    return Digits(x, y, float(best))


def rows(seed: int) -> Iterator[Row]:
    """A curve for each rate of sgd, and ours."""
    data = problem()
    for rate in RATES:
        yield from curve(data, f"sgd, rate {rate:.2g}", rate, seed)
    yield from curve(data, OURS, None, seed)


def curve(data: Digits, method: str, rate: float | None, seed: int) -> Iterator[Row]:
    """The gap after each epoch of the iterates' average; for ours the rate is left to `observe`."""
    model = nn.Linear(65, 1, bias=False, dtype=data.x.dtype)
    nn.init.zeros_(model.weight)
    average = AveragedModel(model, avg_fn=lambda mean, new, n: mean + 4 / (n + 4) * (new - mean))
    base = torch.optim.SGD(model.parameters(), lr=rate or 1.0)
    opt = base if rate else Preconditioned(base)
    generator, points, products = torch.Generator().manual_seed(seed), 0, 0
    began = time.perf_counter()

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return data.loss(model, batch)

    for _ in range(EPOCHS):
        for part in torch.randperm(len(data.x), generator=generator).split(BATCH):  # type: ignore[no-untyped-call]
            batch = data.x[part], data.y[part]
            opt.zero_grad()
            loss(batch).backward()  # type: ignore[no-untyped-call]
            if isinstance(opt, Preconditioned):
                report = opt.observe(loss, batch)
                products += report.products if report else 0
            opt.step()
            average.update_parameters(model)
            points += len(part)
        gap, accuracy = data.gap(average.module)
        seconds = time.perf_counter() - began
        yield Row(EXPERIMENT, PROBLEM, method, seed, BATCH, points, products, seconds, gap, accuracy)


def best_rate(found: Sequence[Row]) -> str:
    """The rate of sgd that ends nearest to the optimum."""
    last = {r.method: r.loss for r in found if r.method != OURS}
    return min(last, key=lambda method: last[method] if last[method] == last[method] else float("inf"))


def reached(found: Sequence[Row], *, ours: bool) -> list[int | None]:
    """Data points read when the gap first fell below each of GAPS; by sgd with the rate that is the best for that gap."""
    mine = [r for r in found if (r.method == OURS) is ours]
    return [min((r.data_points for r in mine if r.loss < gap), default=None) for gap in GAPS]
