"""Safe from any start: the paper's net, both initialisations, rates over eight orders of magnitude."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from infhess.data import cifar10
from infhess.experiments.pieces import Piece
from infhess.experiments.rows import Row
from infhess.optim import Preconditioned
from infhess.problems.nets import paper_net

EXPERIMENT, BATCH, STEPS, EPOCH, IMAGES = "bench-deep-safety", 32, 320, 156, 5000
RATES = (1e-6, 1e-4, 1e-2, 1.0, 1e2)
L2 = 0.01
CHANCE = math.log(10)

Params = Iterator[nn.Parameter]
WAYS: dict[str, tuple[Callable[[Params, float], Preconditioned], str]] = {
    "sgd, observe": (lambda p, lr: Preconditioned(torch.optim.SGD(p, lr=lr)), "observe"),
    "momentum .9, observe": (lambda p, lr: Preconditioned(torch.optim.SGD(p, lr=lr, momentum=0.9)), "observe"),
    "adam, observe": (lambda p, lr: Preconditioned(torch.optim.Adam(p, lr=lr)), "observe"),
    "sgd, update each epoch": (
        lambda p, lr: Preconditioned(torch.optim.SGD(p, lr=lr), rank=2, blocks="layer"),
        "update",
    ),
}


def pieces(seed: int, *, quick: bool = False) -> Iterator[Piece]:
    """One run for each initialisation, way and rate; narrow copies and three rates with `quick`."""
    width, steps, rates = (0.2, 150, RATES[::2]) if quick else (1.0, STEPS, RATES)
    for start in ("default", "xavier"):
        for way in WAYS:
            for rate in rates:
                key = (EXPERIMENT, f"{start} initialisation", f"{way}, rate {rate:g}", seed, BATCH)
                yield Piece(key, f"{start}: {way}, rate {rate:g}", run, (start, way, rate, seed, width, steps))


def run(start: str, way: str, rate: float, seed: int, width: float, steps: int) -> list[Row]:
    """Train, and give the final cross-entropy (loss) and accuracy (metric) on the training images."""
    x, y = images()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = paper_net(width, xavier=start == "xavier")
    make, how = WAYS[way]
    opt, generator = make(model.parameters(), rate), torch.Generator().manual_seed(seed)

    def draw() -> tuple[Tensor, Tensor]:
        part = torch.randint(len(x), (BATCH,), generator=generator)
        return x[part], y[part]

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        decay = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) + L2 / 2 * decay

    began, products, points = time.perf_counter(), 0, 0
    for step in range(steps):
        if how == "update" and step % EPOCH == 0:
            report = opt.update(loss, iter(draw, None))
            products, points = products + report.products, points + report.data_points
        batch = draw()
        points += BATCH
        opt.zero_grad()
        loss(batch).backward()  # type: ignore[no-untyped-call]
        if how == "observe":
            seen = opt.observe(loss, batch)
            products += seen.products if seen else 0
        opt.step()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in torch.split(x, 500)])
    final = float(nn.functional.cross_entropy(outputs, y))
    accuracy = float((outputs.argmax(1) == y).float().mean())
    name = f"{way}, rate {rate:g}"
    return [Row(EXPERIMENT, f"{start} initialisation", name, seed, BATCH, points, products, seconds, final, accuracy)]


def images() -> tuple[Tensor, Tensor]:
    """The first 5,000 training images of CIFAR-10, standardised by channel."""
    x, y = cifar10()
    x = x[:IMAGES].float() / 255
    return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True), y[:IMAGES]


def markdown(rows: Sequence[Row]) -> str:
    """Final cross-entropy and accuracy by rate; a net that is no better than chance is dead."""
    rates = sorted({float(r.method.rpartition(" ")[2]) for r in rows})
    lines = [f"| start, way | {' | '.join(f'rate {r:g}' for r in rates)} | dead |", "|---" * (len(rates) + 2) + "|"]
    dead = 0
    for start in ("default initialisation", "xavier initialisation"):
        for way in WAYS:
            found = {r.method: r for r in rows if r.problem == start and r.method.startswith(way)}
            mine = [found.get(f"{way}, rate {rate:g}") for rate in rates]
            lost = sum(not r.loss < CHANCE - 0.01 for r in mine if r)
            shown = (f"{r.loss:.3f} ({100 * r.metric:.0f} %)" if r else "–" for r in mine)
            lines.append(f"| {start}, {way} | {' | '.join(shown)} | {lost} |")
            dead += lost
    return "\n".join([*lines, "", f"Dead or not finite: {dead} of {len(rows)} runs (chance is {CHANCE:.3f}).", ""])
