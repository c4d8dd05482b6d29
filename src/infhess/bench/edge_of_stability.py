"""Where gradient descent is at the edge of stability: the top eigenvalue with error bars, along training, beside 2/η."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from infhess._draw import INK, band
from infhess.curvature import Hessian
from infhess.data import cifar10
from infhess.experiments import plots
from infhess.harness import Job, Row, markdown
from infhess.problems import Data, Shuffled, paper_net, seeded
from infhess.problems.shuffled import objective
from infhess.spectra import Tracker

EXPERIMENT = "bench-curvature-edge"
PROBLEM = "the paper's net at a tenth of its width, 500 images of CIFAR-10"
IMAGES, BATCH, WIDTH = 500, 50, 0.1
RATES, STEPS, EVERY = (0.02, 0.05), 400, 10
LOSS = "training loss"
NAMES = ("value", "low", "high", "limit")
COLOURS = (plots.BLUE, plots.ORANGE)


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """One run for each learning rate."""
    for rate in RATES[1:] if quick else RATES:
        template = Row(EXPERIMENT, PROBLEM, f"η = {rate:g}: value", seed, IMAGES)
        yield Job(template, followed, (rate, 20 if quick else STEPS))


def followed(template: Row, rate: float, steps: int) -> list[Row]:
    """Full-batch gradient descent; a tracker that reads mini-batches estimates the eigenvalue every few steps."""
    with seeded(template.seed):
        net = paper_net(WIDTH, xavier=True)
    images, labels = cifar10()
    x, y = images[:IMAGES].float(), labels[:IMAGES]
    x = (x - x.mean()) / x.std()  # over all pixels
    loss, params = objective(cross_entropy, net, 0.0), list[Tensor](net.parameters())
    batches = Shuffled((x, y), BATCH, torch.Generator().manual_seed(template.seed))
    tracker, rows, start = Tracker(Hessian(loss, params, batches)), [], time.perf_counter()
    for step in range(steps + 1):
        value, gradients = _gradient(loss, params, x, y)
        if step % EVERY == 0:
            tracker.update(rate=rate, step=step)
            moment = tracker.history[-1]
            row = replace(template, data_points=step * IMAGES, seconds=time.perf_counter() - start, loss=value)
            products = sum(m.products for m in tracker.history)
            numbers = dict(zip(NAMES, (moment.values[0], moment.low[0], moment.high[0], 2 / rate)))
            rows += [replace(row, method=f"η = {rate:g}: {n}", metric=v, products=products) for n, v in numbers.items()]
        with torch.no_grad():
            torch._foreach_add_(params, gradients, alpha=-rate)
    return rows


def _gradient(loss: Callable[[Data], Tensor], params: list[Tensor], x: Tensor, y: Tensor) -> tuple[float, list[Tensor]]:
    """Loss and gradient over all images, a part at a time."""
    total, sums = 0.0, [torch.zeros_like(p) for p in params]
    for part in zip(x.split(500), y.split(500)):  # type: ignore[no-untyped-call]
        value = loss(part) * len(part[0]) / len(x)
        torch._foreach_add_(sums, list(torch.autograd.grad(value, params)))
        total += float(value.detach())
    return total, sums


def curves(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """By learning rate, then by name: value, low, high, limit."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row.experiment == EXPERIMENT:
            rate, name = row.method.split(": ")
            found.setdefault(rate, {}).setdefault(name, []).append(row)
    return found


def summary(rows: Sequence[Row]) -> str:
    """For each rate: when the interval first reaches 2/η, the eigenvalue in the last third, and products per update."""
    lines = [["rate", "2/η", "first step with 2/η in the interval", "λ₁ · η/2 in the last third", "products an update"]]
    for rate, curve in curves(rows).items():
        limit = curve["limit"][0].metric
        bounds = zip(curve["low"], curve["high"])
        reached = [a.data_points // IMAGES for a, b in bounds if a.metric <= limit <= b.metric]
        late = curve["value"][-len(curve["value"]) // 3 :]
        ratio = sum(r.metric for r in late) / len(late) / limit
        each = curve["value"][-1].products / len(curve["value"])
        lines.append([rate, f"{limit:g}", str(reached[0]) if reached else "never", f"{ratio:.2f}", f"{each:.1f}"])
    return markdown(lines)


def figure(rows: Sequence[Row], path: Path) -> Path:
    """λ₁ with its 95 % intervals over steps, and 2/η, one colour per rate; the loss below."""
    fig, (above, below) = plots.figure(7.0, 5.4, nrows=2, sharex=True, height_ratios=(2, 1))
    for (rate, curve), colour in zip(curves(rows).items(), COLOURS):
        steps = [r.data_points // IMAGES for r in curve["value"]]
        value, low, high, limit = ([r.metric for r in curve[name]] for name in NAMES)
        band(above, steps, value, low, high, f"λ₁ with its 95 % interval, {rate}", colour)
        above.axhline(limit[0], color=colour, linestyle="--", linewidth=1.2)
        above.annotate(f"2/η, {rate}", (steps[-1], limit[0]), color=INK, ha="right", va="bottom", fontsize=8)
        below.plot(steps, [r.loss for r in curve["value"]], color=colour, label=rate)
    above.set(ylabel="curvature", yscale="log")
    below.set(xlabel="step of gradient descent", ylabel=LOSS)
    above.legend(frameon=False)
    return plots.save(fig, path)
