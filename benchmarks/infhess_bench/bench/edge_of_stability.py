"""Gradient descent at the edge of stability: the top eigenvalue with error bars, along training, next to 2/η."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from infhess._draw import INK, band
from infhess.curvature import Hessian
from infhess.spectra import Tracker
from infhess_bench.data import cifar10
from infhess_bench.experiments import plots
from infhess_bench.harness import Job, Row, markdown
from infhess_bench.problems import Data, Shuffled, paper_net, seeded
from infhess_bench.problems.shuffled import objective

EXPERIMENT = "bench-curvature-edge"
BATCH, EVERY = 50, 10  # points per batch of the tracker, and steps between two updates
RATES = 0.02, 0.05
LOSS = "training loss"
NAMES = ("value", "low", "high", "limit")
COLOURS = (plots.BLUE, plots.ORANGE)


class Case(NamedTuple):
    """The width of the paper's net, the number of images of CIFAR-10, and steps of gradient descent."""

    width: float
    images: int
    steps: int


CASES = {
    "the paper's net at a tenth of its width, 500 images of CIFAR-10": Case(0.1, 500, 400),
    "the paper's net, 200 images of CIFAR-10": Case(1.0, 200, 200),
}


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """One run per net and learning rate."""
    for name, case in list(CASES.items())[: 1 if quick else None]:
        for rate in RATES[1:] if quick else RATES:
            template = Row(EXPERIMENT, name, f"η = {rate:g}: value", seed, case.images)
            yield Job(template, followed, (case._replace(steps=20) if quick else case, rate))


def followed(template: Row, case: Case, rate: float) -> list[Row]:
    """Full-batch gradient descent; a tracker on mini-batches estimates the eigenvalue every few steps."""
    with seeded(template.seed):
        net = paper_net(case.width, xavier=True)
    images, labels = cifar10()
    x, y = images[: case.images].float(), labels[: case.images]
    x = (x - x.mean()) / x.std()  # over all pixels
    loss, params = objective(cross_entropy, net, 0.0), list[Tensor](net.parameters())
    batches = Shuffled((x, y), BATCH, torch.Generator().manual_seed(template.seed))
    tracker, rows, start = Tracker(Hessian(loss, params, batches)), [], time.perf_counter()
    for step in range(case.steps + 1):
        value, gradients = _gradient(loss, params, x, y)
        if step % EVERY == 0:
            tracker.update(rate=rate, step=step)
            moment = tracker.history[-1]
            row = replace(template, data_points=step * case.images, seconds=time.perf_counter() - start, loss=value)
            products = sum(m.products for m in tracker.history)
            numbers = dict(zip(NAMES, (moment.values[0], moment.low[0], moment.high[0], 2 / rate)))
            rows += [replace(row, method=f"η = {rate:g}: {n}", metric=v, products=products) for n, v in numbers.items()]
        with torch.no_grad():
            torch._foreach_add_(params, gradients, alpha=-rate)
    return rows


def _gradient(loss: Callable[[Data], Tensor], params: list[Tensor], x: Tensor, y: Tensor) -> tuple[float, list[Tensor]]:
    """Loss and gradient over all images, a slice at a time."""
    total, sums = 0.0, [torch.zeros_like(p) for p in params]
    for part in zip(x.split(500), y.split(500)):  # type: ignore[no-untyped-call]
        value = loss(part) * len(part[0]) / len(x)
        torch._foreach_add_(sums, list(torch.autograd.grad(value, params)))
        total += float(value.detach())
    return total, sums


Curves = dict[str, list[Row]]  # by name: value, low, high, limit


def curves(rows: Sequence[Row]) -> dict[str, dict[str, Curves]]:
    """Curves by net, then by learning rate."""
    found: dict[str, dict[str, Curves]] = {}
    for row in rows:
        if row.experiment == EXPERIMENT:
            rate, name = row.method.split(": ")
            found.setdefault(row.problem, {}).setdefault(rate, {}).setdefault(name, []).append(row)
    return found


def summary(rows: Sequence[Row]) -> str:
    """For each run: when the interval first reaches 2/η, the eigenvalue in the last third, and products per update."""
    reached = "first step whose interval reaches 2/η"
    lines = [["net", "rate", "2/η", reached, "λ₁ · η/2 in the last third", "products per update"]]
    for net, by_rate in curves(rows).items():
        lines += [[net, rate, *_cells(curve)] for rate, curve in by_rate.items()]
    return markdown(lines)


def _cells(curve: Curves) -> list[str]:
    limit, value = curve["limit"][0].metric, curve["value"]
    reached = [step(high) for high in curve["high"] if high.metric >= limit]
    late = value[-len(value) // 3 :]
    ratio, each = sum(r.metric for r in late) / len(late) / limit, value[-1].products / len(value)
    return [f"{limit:g}", str(reached[0]) if reached else "never", f"{ratio:.2f}", f"{each:.1f}"]


def step(row: Row) -> int:
    """The step of gradient descent; each step reads all images."""
    return row.data_points // row.batch_size


def figure(rows: Sequence[Row], path: Path) -> Path:
    """λ₁ with its 95 % intervals over steps, and 2/η, one colour per rate; the loss below; nets side by side."""
    found = curves(rows)
    columns = {"ncols": len(found), "sharex": "col", "squeeze": False}
    fig, axes = plots.figure(5.2 * len(found) + 1.6, 5.4, nrows=2, height_ratios=(2, 1), **columns)
    for (net, by_rate), above, below in zip(found.items(), *axes):
        for (rate, curve), colour in zip(by_rate.items(), COLOURS):
            _draw(above, below, rate, curve, colour)
        above.set(yscale="log", title=net)
        below.set(xlabel="step of gradient descent")
    axes[0, 0].set(ylabel="curvature")
    axes[1, 0].set(ylabel=LOSS)
    axes[0, 0].legend(frameon=False)
    return plots.save(fig, path)


def _draw(above: Any, below: Any, rate: str, curve: Curves, colour: str) -> None:
    steps = [step(r) for r in curve["value"]]
    value, low, high, limit = ([r.metric for r in curve[name]] for name in NAMES)
    band(above, steps, value, low, high, f"λ₁ with its 95 % interval, {rate}", colour)
    above.axhline(limit[0], color=colour, linestyle="--", linewidth=1.2)
    above.annotate(f"2/η, {rate}", (steps[-1], limit[0]), color=INK, ha="right", va="bottom", fontsize=8)
    below.plot(steps, [r.loss for r in curve["value"]], color=colour, label=rate)
