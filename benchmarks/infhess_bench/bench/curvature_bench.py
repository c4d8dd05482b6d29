"""Top eigenvalues compared with other tools, at equal work: products × points."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean, mean, median

import torch
from torch import Tensor

from infhess.curvature import Hessian
from infhess_bench.bench.cost import NoiseNet
from infhess_bench.bench.coverage import PROBLEMS, QUICK, truth_of
from infhess_bench.bench.eigen_baselines import EIGENSOLVERS, INFHESS, TOP, Found, missing
from infhess_bench.bench.timed_nets import top_error
from infhess_bench.experiments import plots
from infhess_bench.harness import Job, Row, markdown, timed

EXPERIMENT = "bench-curvature"
BATCHES, PRODUCTS, TRIALS = (16, 64, 256, 1024), (16, 32, 64), 3
COST = "a product / a bare double backward"
HESSIAN_ONLY = ("hessian-eigenthings", "PyHessian")
COLOURS = (plots.BLUE, plots.GREY, plots.INK, plots.ORANGE, "#3c8d5a", "#8a5ab5", "#b5a23c")


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """One job per problem, batch size and installed method; and the cost of a product."""
    installed = [method for method in EIGENSOLVERS if method not in missing()]
    problems, batches = (QUICK, BATCHES[:2]) if quick else (PROBLEMS, BATCHES)
    for problem, batch, method in product(problems, batches, installed):
        if not ("gauss" in problem and method in HESSIAN_ONLY):
            yield Job(Row(EXPERIMENT, problem, f"{method} / {PRODUCTS[0]}", seed, batch), compare, (method,))
    yield Job(Row(EXPERIMENT, "cost", COST, seed, 32), cost)


def compare(template: Row, method: str) -> list[Row]:
    """Relative error of the top five values (loss) and captured energy of the top-five space (metric), means over trials."""
    problem, H, _ = truth_of(template.problem)
    values, V = torch.linalg.eigh(H)
    truth, V = values.flip(0)[:TOP], V.flip(1)[:, :TOP]
    rows, batch = [], template.batch_size
    for products in PRODUCTS:
        errors, energies, seconds = [], [], []
        for trial in range(TRIALS):
            g = torch.Generator().manual_seed(10**6 * (template.seed + 1) + 1000 * products + trial)
            start = time.perf_counter()
            found = EIGENSOLVERS[method][0](problem, batch, products, g)
            seconds.append(time.perf_counter() - start)
            errors.append(top_error(found.values, truth))
            energies.append(energy(found, V))
        row = replace(template, method=f"{method} / {products}", data_points=found.points, products=found.work // batch)
        rows.append(replace(row, seconds=median(seconds), loss=mean(errors), metric=mean(energies)))
    return rows


def energy(found: Found, V: Tensor) -> float:
    """The share of the true top-five space that the found one captures."""
    U = torch.linalg.qr(found.vectors.double()).Q
    return float((V.mT @ U).square().sum() / TOP)


def cost(template: Row) -> list[Row]:
    """Seconds of a product of the paper's net at batch 32, over those of a plain double backward; medians over pairs."""
    net = NoiseNet(template.seed, 1.0)
    source, s = Hessian(net.loss, net.params, net.batches[:1]), torch.ones(net.size)

    def bare() -> None:
        grads = torch.autograd.grad(net.loss(net.batches[0]), net.params, create_graph=True)
        torch.autograd.grad(grads, net.params, source.flat.unpack(s))

    pairs = [(timed(lambda: source.matvec(s)), timed(bare)) for _ in range(25)][5:]
    ratio = median(a / b for a, b in pairs)
    return [replace(template, seconds=median(a for a, _ in pairs), metric=ratio)]


def ratios(rows: Sequence[Row]) -> dict[tuple[str, int], tuple[float, float, float, float]]:
    """By method and products, over cells: geometric means of the error and of its ratio to infhess, energy, seconds."""
    cells = {(r.problem, r.batch_size, r.method): r for r in rows if r.experiment == EXPERIMENT and r.problem != "cost"}
    table = {}
    for method, products in product(EIGENSOLVERS, PRODUCTS):
        mine = [r for (_, _, m), r in cells.items() if m == f"{method} / {products}"]
        beside = [cells[r.problem, r.batch_size, f"{INFHESS} / {products}"].loss for r in mine]
        if mine:
            errors = geometric_mean(r.loss for r in mine), geometric_mean(r.loss / x for r, x in zip(mine, beside))
            table[method, products] = *errors, mean(r.metric for r in mine), median(r.seconds for r in mine)
    return table


def summary(rows: Sequence[Row]) -> str:
    """The comparison, and the cost of a product."""
    table = ratios(rows)
    lines = [["method", *(f"{p} products: error (× infhess), energy, s" for p in PRODUCTS)]]
    for method in EIGENSOLVERS:
        entries = (table.get((method, p)) for p in PRODUCTS)
        lines.append([method, *(f"{e[0]:.3f} ({e[1]:.2f}), {e[2]:.2f}, {e[3]:.2f}" if e else "–" for e in entries)])
    below = [f"Not installed, so not run: {m} ({package})." for m, package in missing().items()]
    below += [f"{COST}: {r.metric:.3f} (the paper's net, batch 32)." for r in rows if r.method == COST]
    return "\n".join([markdown(lines), *below, ""])


def figure(rows: Sequence[Row], path: Path) -> Path:
    """Error of the top five against products."""
    table = ratios(rows)
    fig, ax = plots.figure()
    for method, colour in zip(EIGENSOLVERS, COLOURS):
        points = [(p, table[method, p][0]) for p in PRODUCTS if (method, p) in table]
        if points:
            ax.plot(*zip(*points), "o-", color=colour, label=method, linewidth=2.5 if method == INFHESS else 1.2)
    ax.set(xscale="log", yscale="log", xlabel="products with a batch")
    ax.set_ylabel("relative error of the top five eigenvalues")
    ax.set_xticks(PRODUCTS, [str(p) for p in PRODUCTS])
    ax.legend(frameon=False, fontsize=8)
    return plots.save(fig, path)
