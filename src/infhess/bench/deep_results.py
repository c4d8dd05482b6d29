"""What the bench of nets found: who ends lower, the targets, tables, figures and a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from infhess._version import __version__
from infhess.bench.deep_baselines import ADAM, AROUND, METHODS, NO_RATE, PAPER, RANK, RANKED, SCHEDULE_FREE, SGD
from infhess.bench.deep_bench import RATES
from infhess.bench.deep_targets import RIVALS, Nets, mean_of, noise, targets
from infhess.experiments import page, panels, plots
from infhess.experiments.page import Figure, Page
from infhess.experiments.panels import Line
from infhess.harness.methods import missing
from infhess.harness.rows import Row
from infhess.harness.tables import Cells, markdown, target_cells, write
from infhess.harness.training import RATE
from infhess.problems.net_problems import NetProblem, net_problem

COLOURS = {
    NO_RATE: (plots.BLUE, "-"), AROUND["Adam"]: (plots.BLUE, ":"), AROUND["sgd"]: (plots.BLUE, "--"),
    ADAM: (plots.ORANGE, "-"), f"{ADAM}, tuned": (plots.ORANGE, "--"), SCHEDULE_FREE: (plots.GREEN, "-"),
    "Prodigy": (plots.PURPLE, "-"), f"{SGD}, tuned": (plots.GREY, "-"), PAPER: (plots.GREY, "--"),
}  # fmt: skip
AXES: dict[str, tuple[panels.Value, panels.Value]] = {
    "work": (lambda r: r.data_points + NetProblem.price * r.products * r.batch_size, lambda r: min(r.loss, 1e6)),
    "seconds": (lambda r: r.seconds, lambda r: min(r.loss, 1e6)),
    "data points": (lambda r: r.data_points, lambda r: min(r.metric, 1e6)),
}


def report(rows: Sequence[Row], seeds: Sequence[int], folder: Path) -> str:
    """summary.md, targets.md, table.md, starts.md, rank.md, figures and report.html; returns the first two."""
    nets = Nets(rows, seeds)
    parts: dict[str, tuple[str, Cells]] = {
        "summary": ("At the end", summary(nets)),
        "targets": ("Targets", target_cells(targets(nets))),
        "starts": ("From any rate", starts(nets)),
        "rank": ("What directions add", ranked(nets)),
        "table": ("All methods", everything(nets)),
    }
    texts = {name: markdown(cells) for name, (_, cells) in parts.items()}
    texts["summary"] += "\n† infhess was not run on it in development.\n" if any(map(_unseen, nets.problems)) else ""
    for name, text in texts.items():
        write(folder / f"{name}.md", text)
    Page(
        "Nets without a rate, head to head",
        f"infhess {__version__} and what users would pick instead: infhess bench deep --seed {seeds[0]}",
        (),
        [_losses(nets, folder), _rates(nets, folder)],
        notes(nets, seeds),
        list(parts.values()),
    ).write(folder / "report.html")
    return f"{texts['summary']}\n{texts['targets']}"


def summary(nets: Nets) -> Cells:
    """Training objective (test loss) at the end."""
    shown = (NO_RATE, ADAM, f"{ADAM}, tuned", SCHEDULE_FREE, f"{SGD}, tuned")
    lines = [["problem", *shown, "best of all others at their defaults"]]
    for name in nets.problems:
        others = [m for m in nets.methods(name) if not (m.startswith("infhess") or m.endswith("tuned"))]
        best = min(others, key=lambda m: nets.objective(name, m), default="")
        cells = (_pair(nets, name, m) for m in shown)
        lines.append([f"{name}{_unseen(name)}", *cells, f"{best} {_pair(nets, name, best)}"])
    return lines


def _unseen(name: str) -> str:
    return "" if net_problem(name).seen else " †"


def _pair(nets: Nets, name: str, method: str) -> str:
    return f"{_shown(nets.objective(name, method))} ({_shown(nets.tested(name, method))})"


def _shown(x: float) -> str:
    return "lost" if math.isinf(x) else "–" if math.isnan(x) else f"{x:.3g}" if abs(x) < 10 else f"{x:.1f}"


def everything(nets: Nets) -> Cells:
    """All methods: objective and test loss at the end."""
    methods = dict.fromkeys(m for name in nets.problems for m in nets.methods(name))
    return [["method", *nets.problems], *([m, *(_pair(nets, name, m) for name in nets.problems)] for m in methods)]


def ranked(nets: Nets) -> Cells:
    """What a preconditioner of low rank adds over the step length alone."""
    lines = [["problem", "the step length alone", f"with {RANK} directions per layer", "directions"]]
    methods = (AROUND["sgd"], RANKED)
    for name in nets.problems:
        alone, beside = (nets.objective(name, m) for m in methods)
        least = 2 * noise([nets.ends(name, m) for m in methods])
        word = "add nothing" if abs(beside - alone) <= least else "help" if beside < alone else "cost more"
        if not math.isnan(beside - alone):
            lines.append([name, *(_pair(nets, name, m) for m in methods), "–" if math.isnan(least) else word])
    return lines


def starts(nets: Nets) -> Cells:
    """Objective at the end by the rate that the base was made with: mean over seeds."""
    lines = [["problem, base", *(f"{r:g}" for r in RATES), "seeds differ by", "rival"]]
    for name in nets.problems:
        for base, rival in RIVALS.items():
            found = nets.from_rates(name, base)
            if any(found):
                means = (_shown(mean_of(r.loss for r in rows)) for rows in found)
                beside = f"{rival} {_shown(nets.objective(name, rival))}"
                lines.append([f"{name}, {base}", *means, _shown(noise(found)), beside])
    return lines


def _losses(nets: Nets, folder: Path) -> Figure:
    fig, grid = panels.grid(len(nets.problems), 3, height=2.4, share=False)
    for row, name in zip(grid, nets.problems):
        for ax, (label, (x, y)) in zip(row, AXES.items()):
            for method, (colour, dashes) in COLOURS.items():
                panels.draw(ax, Line(method, colour, nets.runs(name, method), dashes), x, y)
            ax.set(xscale="log", yscale="log", xlabel=label)
        row[0].set_ylabel(f"{name}\nobjective", fontsize=7)
        row[2].set_ylabel("test loss", fontsize=7)
    path = panels.save(fig, grid, folder / "deep.svg", columns=3)
    caption = "Training objective against work and seconds, and test loss against data points; thin lines are seeds."
    return Figure(path, caption)


def _rates(nets: Nets, folder: Path) -> Figure:
    """The rate found over time, with its uncertainty."""
    columns = 3
    fig, grid = panels.grid(-(-len(nets.problems) // columns), columns, height=2.2, share=False)
    for ax, name in zip(grid.flat, nets.problems):
        for run in nets.runs(name, NO_RATE + RATE):
            steps, rates = [r.data_points / r.batch_size for r in run], [r.loss for r in run]
            low, high = ([r.loss * math.exp(s * 2 * r.metric) for r in run] for s in (-1, 1))
            ax.plot(steps, rates, color=plots.BLUE, linewidth=1, label="rate of RateFree, one line per seed")
            band = {"alpha": 0.15, "linewidth": 0, "label": "two standard deviations"}
            ax.fill_between(steps, low, high, color=plots.BLUE, **band)
        ax.set(xscale="log", yscale="log", xlabel="steps", title=name)
    return Figure(panels.save(fig, grid, folder / "rates.svg"), "The rate that RateFree found, over time.")


def notes(nets: Nets, seeds: Sequence[int]) -> list[str]:
    """How it was done, and what does not show in the figures."""
    seen, new = ([n for n in nets.problems if net_problem(n).seen is known] for known in (True, False))
    return page.notes("bench-deep", seeds=seeds, seen=seen, new=new, missing=missing(METHODS))
