"""Top eigenvalues beside other tools, at equal work: products × points."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from infhess.bench.coverage import PROBLEMS, problem_and_truth
from infhess.bench.peers import METHODS, TOP, Found, missing
from infhess.curvature import Hessian
from infhess.experiments import plots
from infhess.experiments.pieces import Piece
from infhess.experiments.rows import Row
from infhess.problems.nets import paper_net

EXPERIMENT = "bench-curvature"
QUICK = ("digits-logistic", "digits-mlp")
BATCHES, PRODUCTS, TRIALS = (16, 64, 256, 1024), (16, 32, 64), 3
COST = "a product / a bare double backward"


def pieces(seed: int, *, quick: bool = False) -> Iterator[Piece]:
    """A piece for each problem, batch size and method that is installed; and the cost of a product."""
    absent = missing()
    for problem in QUICK if quick else PROBLEMS:
        for batch in BATCHES[:2] if quick else BATCHES:
            for method in METHODS:
                if method not in absent and not ("gauss" in problem and method in ("hessian-eigenthings", "PyHessian")):
                    key = (EXPERIMENT, problem, f"{method} / {PRODUCTS[0]}", seed, batch)
                    yield Piece(key, f"{problem}, batch {batch}: {method}", compare, (problem, batch, method, seed))
    yield Piece((EXPERIMENT, "cost", COST, seed, 32), "cost of a product of the paper's net", cost, (seed,))


def compare(name: str, batch: int, method: str, seed: int) -> list[Row]:
    """Relative error of the top five values (loss) and energy of the top-five space captured (metric), medians of trials."""
    problem, H = problem_and_truth(name)
    values, V = torch.linalg.eigh(H)
    truth, V = values.flip(0)[:TOP], V.flip(1)[:, :TOP]
    rows = []
    for products in PRODUCTS:
        errors, energies, seconds, found = [], [], [], None
        for trial in range(TRIALS):
            g = torch.Generator().manual_seed(10**6 * (seed + 1) + 1000 * products + trial)
            start = time.perf_counter()
            found = METHODS[method][0](problem, batch, products, g)
            seconds.append(time.perf_counter() - start)
            errors.append(error(found, truth))
            energies.append(energy(found, V))
        assert found is not None
        rows.append(
            Row(
                EXPERIMENT, name, f"{method} / {products}", seed, batch, found.points, found.work // batch,
                statistics.median(seconds), loss=statistics.mean(errors), metric=statistics.mean(energies),
            )
        )  # fmt: skip
    return rows


def error(found: Found, truth: Tensor) -> float:
    """Mean relative error of the top five; one that was not found counts as 1."""
    relative = torch.ones(TOP, dtype=torch.float64)
    n = min(TOP, len(found.values))
    relative[:n] = ((found.values[:n].double() - truth[:n]) / truth[:n]).abs()
    return float(relative.mean())


def energy(found: Found, V: Tensor) -> float:
    """Share of the true top-five space that the found one captures."""
    U = torch.linalg.qr(found.vectors.double()).Q
    return float((V.mT @ U).square().sum() / TOP)


def cost(seed: int) -> list[Row]:
    """Seconds of a product of the paper's net at batch 32, over those of a bare double backward; medians of pairs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, x, y = paper_net(), torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    params = list(model.parameters())
    source = Hessian(lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), params, [(x, y)])
    s = torch.ones(source.size)

    def bare() -> None:
        grads = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), params, create_graph=True)
        torch.autograd.grad(grads, params, source.flat.unpack(s))

    def timed(f: object) -> float:
        start = time.perf_counter()
        f()  # type: ignore[operator]
        return time.perf_counter() - start

    pairs = [(timed(lambda: source.matvec(s)), timed(bare)) for _ in range(25)][5:]
    ratio = statistics.median(a / b for a, b in pairs)
    return [Row(EXPERIMENT, "cost", COST, seed, 32, seconds=statistics.median(a for a, _ in pairs), metric=ratio)]


def ratios(rows: Sequence[Row]) -> dict[tuple[str, int], tuple[float, float, float, float]]:
    """By method and products, over cells: geometric mean of the error and of its ratio to ours, mean energy, median seconds."""
    cells = {(r.problem, r.batch_size, r.method): r for r in rows if r.experiment == EXPERIMENT and r.problem != "cost"}
    table = {}
    for method in METHODS:
        for products in PRODUCTS:
            name = f"{method} / {products}"
            mine = {(p, b): r for (p, b, m), r in cells.items() if m == name}
            if mine:
                compared = [r.loss / cells[p, b, f"ours / {products}"].loss for (p, b), r in mine.items()]
                table[method, products] = (
                    _geometric([r.loss for r in mine.values()]), _geometric(compared),
                    statistics.mean(r.metric for r in mine.values()), statistics.median(r.seconds for r in mine.values()),
                )  # fmt: skip
    return table


def _geometric(values: list[float]) -> float:
    return math.exp(statistics.mean(math.log(max(v, 1e-12)) for v in values))


def markdown(rows: Sequence[Row]) -> str:
    """The comparison, and the cost of a product."""
    table = ratios(rows)
    head = " | ".join(f"{p} products: error (× ours), energy, s" for p in PRODUCTS)
    lines = [f"| method | {head} |", "|---" * (len(PRODUCTS) + 1) + "|"]
    for method in METHODS:
        entries = [table.get((method, p)) for p in PRODUCTS]
        shown = (f"{e[0]:.3f} ({e[1]:.2f}), {e[2]:.2f}, {e[3]:.2f}" if e else "–" for e in entries)
        lines.append(f"| {method} | {' | '.join(shown)} |")
    lines += ["", *(f"Not installed, so not run: {m} ({package})." for m, package in missing().items())]
    lines += [f"{COST}: {r.metric:.3f} (the paper's net, batch 32)." for r in rows if r.method == COST]
    return "\n".join(lines) + "\n"


def figure(rows: Sequence[Row], path: Path) -> Path:
    """Error of the top five against products."""
    table = ratios(rows)
    fig, ax = plots.figure()
    colours = dict(zip(METHODS, [plots.BLUE, plots.GREY, plots.INK, plots.ORANGE, "#3c8d5a", "#8a5ab5", "#b5a23c"]))
    for method in METHODS:
        points = [(p, table[method, p][0]) for p in PRODUCTS if (method, p) in table]
        if points:
            ax.plot(
                *zip(*points), "o-", color=colours[method], label=method, linewidth=2.5 if method == "ours" else 1.2
            )
    ax.set(
        xscale="log", yscale="log", xlabel="products with a batch", ylabel="relative error of the top five eigenvalues"
    )
    ax.set_xticks(PRODUCTS, [str(p) for p in PRODUCTS])
    ax.legend(frameon=False, fontsize=8)
    return plots.save(fig, path)
