"""What the bench of nets found: targets, tables, a performance profile, learning rates, and a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from infhess._version import __version__
from infhess.bench.deep_baselines import ADAM, COSINE, METHODS, MUON, NO_RATE, SCHEDULE_FREE, SOAP, warm_cosine
from infhess.bench.standings import COSTS, MEASURES, MINE, Standings, default_of, slower_start
from infhess.experiments import page, plots
from infhess.experiments.page import Figure, Page
from infhess.harness import RATE, Cells, Row, Target, at_least, at_most, markdown, missing, target_cells
from infhess.problems.net_sets import SETS, net_problem, set_of

# Problems that a target names.
LISTED = 3
LEVEL = 1.1  # a measure up to so many times another is within 10 % of it
# Lines of the profile: how each is drawn, and whether a method is at its default or tuned.
LINES: dict[tuple[str, bool], tuple[str, str]] = {
    (MINE, False): (plots.BLUE, "-"), (NO_RATE, False): (plots.BLUE, ":"), (COSINE, True): (plots.ORANGE, "-"),
    (COSINE, False): (plots.ORANGE, ":"), (SOAP, True): (plots.GREEN, "-"), (SOAP, False): (plots.GREEN, ":"),
    (MUON, True): (plots.PURPLE, "-"), (SCHEDULE_FREE, False): (plots.INK, ":"), (ADAM, True): (plots.GREY, "-"),
    (SCHEDULE_FREE, True): (plots.INK, "-"), ("Prodigy, schedule-free", False): (plots.PURPLE, ":"),
}  # fmt: skip


def targets(standings: Standings) -> list[Target]:
    """The goals, and what was measured, on each set of problems."""
    found: list[Target] = []
    for title in reversed(SETS):
        names = [name for name in standings.problems if set_of(name) == title and standings.runs(name, MINE)]
        if names:
            found += [*_ends(standings, title, names), *_way(standings, title, names)]
    return found


def _ends(standings: Standings, title: str, names: Sequence[str]) -> Iterator[Target]:
    """Against defaults and learning-rate-free methods, and against the best tuned one, in each measure."""
    for measure in MEASURES:
        of = [name for name in names if name in standings.measured(measure)]
        default, tuned = (
            {name: standings.ratio(name, measure, tuned=best) for name in of if standings.peers(name)}
            for best in (False, True)
        )
        for what, ratios, level, share in (
            ("ahead of all peers at their defaults", default, 1.0, 0.9),
            ("ahead of the best tuned peer", tuned, 1.0, 0.5),
            ("ahead of the best tuned peer or within 10 % of it", tuned, LEVEL, 1.0),
        ):
            yield from _share(f"{title}, {measure}: {what}", {n: r <= level for n, r in ratios.items()}, share)
    right = {name: _accuracies(standings, name) for name in names if name in standings.measured("test error")}
    what = f"{title}, test accuracy: within 10 % of that of the best tuned peer"
    yield from _share(what, {n: LEVEL * mine >= best for n, (mine, best) in right.items() if not math.isnan(best)}, 1.0)


def _accuracies(standings: Standings, name: str) -> tuple[float, float]:
    titles = (MINE, standings.best(name, "test error", tuned=True))
    mine, best = (1 - standings.end(name, title, "test error") for title in titles)
    return mine, best


def _way(standings: Standings, title: str, names: Sequence[str]) -> Iterator[Target]:
    """Seconds and gradients to what tuned AdamW with a schedule ends with, the start, and runs that were lost."""
    raced = [name for name in names if standings.goals(name)]
    for of in COSTS:
        won = {n: standings.cost(n, MINE, of) <= standings.cost(n, standings.tuned(n, COSINE), of) for n in raced}
        yield from _share(f"{title}: fewer {of} to the final objective of {COSINE}, tuned", won, 0.5)
    rival = default_of(SCHEDULE_FREE)
    slow = [n for n in names if standings.runs(n, rival) and slower_start(standings, n, rival)]
    yield at_most(
        _listed(f"{title}: problems where it is behind {rival} at some time from 5 % of the run on", slow), len(slow), 0
    )
    runs = [run for name in names for run in standings.runs(name, MINE)]
    yield at_most(f"{title}: runs lost, of {len(runs)}", sum(math.isinf(run[-1].loss) for run in runs), 0)


def _share(what: str, met: dict[str, bool], least: float) -> Iterator[Target]:
    """The share of problems where something holds, with the names of those where it does not."""
    if met:
        title = _listed(f"{what}, share of {len(met)}", [name for name, holds in met.items() if not holds])
        yield at_least(title, sum(met.values()) / len(met), least)


def _listed(what: str, names: Sequence[str]) -> str:
    """With the first few of the names where it does not hold, so that a cell stays short."""
    more = f"; {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{what} ({'; '.join(names[:LISTED])}{more})" if names else what


def summary(standings: Standings) -> Cells:
    """infhess beside peers: objective / test loss / test accuracy, each at the rate that is best for it."""
    columns: dict[str, Callable[[str, str], str]] = {
        "infhess": lambda name, measure: MINE,
        "best peer at its default": partial(standings.best, tuned=False),
        f"{COSINE}, tuned": lambda name, measure: standings.tuned(name, COSINE, measure),
        "best peer, tuned": partial(standings.best, tuned=True),
    }
    return [
        ["problem", *columns],
        *([name, *(_all(standings, name, pick) for pick in columns.values())] for name in standings.problems),
    ]


def _all(standings: Standings, name: str, pick: Callable[[str, str], str]) -> str:
    """All measures of the methods that are picked for them."""
    return " / ".join(_shown(standings.end(name, pick(name, m), m), m) for m in MEASURES)


def everything(standings: Standings, measure: str) -> Cells:
    """All methods at all rates: a measure at the end, means over seeds."""
    return _by_method(standings, measure, lambda name, title: _shown(standings.end(name, title, measure), measure))


def costs(standings: Standings, of: str) -> Cells:
    """Gradients or seconds to the final objective of tuned AdamW with a schedule."""
    return _by_method(standings, f"{of} to it", lambda name, title: _count(standings.cost(name, title, of)))


def ends(standings: Standings, of: str) -> Cells:
    """Gradients or seconds of the whole run."""
    return _by_method(standings, f"{of} in all", lambda name, title: _count(_last(standings, name, title, of)))


def _last(standings: Standings, name: str, title: str, of: str) -> float:
    found = [COSTS[of](run[-1]) for run in standings.runs(name, title)]
    return sum(found) / len(found) if found else math.nan


def _by_method(standings: Standings, head: str, cell: Callable[[str, str], str]) -> Cells:
    titles = dict.fromkeys(title for name in standings.problems for title in standings.titles(name))
    rows = sorted(titles, key=lambda title: (not title.startswith("infhess"), title.rpartition(", ")[0]))
    return [[head, *standings.problems], *([title, *(cell(n, title) for n in standings.problems)] for title in rows)]


def _shown(x: float, measure: str) -> str:
    if math.isnan(x):
        return "–"
    if measure == "test error":
        return f"{100 * (1 - x):.1f} %"
    return "lost" if math.isinf(x) else f"{x:.3g}" if abs(x) < 100 else f"{x:.1f}"


def _count(x: float) -> str:
    return "–" if math.isnan(x) else "never" if math.isinf(x) else f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def report(rows: Sequence[Row], seeds: Sequence[int], folder: Path) -> str:
    """summary.md, targets.md, table.md, figures and report.html; returns the first two."""
    standings = Standings(rows, seeds)
    tables: list[tuple[str, Cells]] = [
        *((f"All methods at all rates: {measure}", everything(standings, measure)) for measure in MEASURES),
        *((f"All methods at all rates: {of} to the goal", costs(standings, of)) for of in COSTS),
        ("All methods at all rates: CPU seconds of the whole run", ends(standings, "CPU seconds")),
    ]
    first = {
        "summary": ("At the end: objective / test loss / test accuracy", summary(standings)),
        "targets": ("Targets", target_cells(targets(standings))),
    }
    cells = {name: table for name, (_, table) in first.items()}
    whole = Page(
        "Nets without a rate, head to head",
        f"infhess {__version__} and what users would pick instead: infhess bench deep --seed {seeds[0]}",
        (),
        [_profile(standings, folder), _rates(standings, folder)],
        notes(standings, seeds),
        [*first.values(), *tables],
    )
    whole.write(folder, cells, heading="")
    return "\n".join(map(markdown, cells.values()))


def profile(values: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """By line, the sorted ratios to the best of all lines, problem by problem: what a performance profile is made of.

    Dolan & Moré 2002, as AlgoPerf draws it (Dahl et al. 2023). `values` are by problem and line; infinite if never solved.
    """
    found: dict[str, list[float]] = {}
    for by_line in values.values():
        known = {line: x for line, x in by_line.items() if not math.isnan(x)}
        best = min(known.values(), default=math.nan)
        for line, x in known.items():
            found.setdefault(line, []).append(x / best if 0 < best < math.inf else math.inf if x > best else 1.0)
    return {line: sorted(ratios) for line, ratios in found.items()}


def _profile(standings: Standings, folder: Path) -> Figure:
    """The share of problems within a factor τ of the best: in gradients, in seconds, and in the objective at the end."""
    panels: dict[str, Callable[[str, str], float]] = {
        **{f"{of} to the goal": partial(standings.cost, of=of) for of in COSTS},
        "objective at the end": lambda name, title: standings.end(name, title, "objective"),
    }
    fig, grid = plots.grid(1, len(panels), height=3.4, share=False)
    for ax, (label, value) in zip(grid.flat, panels.items()):
        values = {
            name: {_line(*key): value(name, _title(standings, name, *key)) for key in LINES}
            for name in standings.problems
        }
        ratios = profile(values)
        for key, (colour, dashes) in LINES.items():
            _staircase(ax, ratios.get(_line(*key), []), (_line(*key), colour, dashes))
        ax.set(xscale="log", xlim=(1, 10), ylim=(0, 1.02), xlabel=f"τ: {label} over the least")
    grid[0, 0].set_ylabel("share of problems within τ")
    caption = (
        "Performance profile: the share of problems on which a method is within a factor τ of the best. The goal is the "
        "final objective of AdamW with warm-up and cosine at its best rate."
    )
    return Figure(plots.save_panels(fig, grid, folder / "profile.svg"), caption)


def _line(method: str, tuned: bool) -> str:
    return f"{method}, tuned" if tuned else method


def _title(standings: Standings, name: str, method: str, tuned: bool) -> str:
    return standings.tuned(name, method) if tuned else default_of(method)


def _staircase(ax: Any, ratios: Sequence[float], style: tuple[str, str, str]) -> None:
    label, colour, dashes = style
    if ratios:
        solved = [r for r in ratios if r < math.inf]
        heights = [i / len(ratios) for i in range(len(solved) + 1)]
        ax.step([1.0, *solved, 1e3], [*heights, heights[-1]], dashes, where="post", color=colour, label=label)


def _rates(standings: Standings, folder: Path) -> Figure:
    """The learning rate found over time, with its uncertainty, beside that of the tuned cosine."""
    columns = min(4, len(standings.problems))
    fig, grid = plots.grid(-(-len(standings.problems) // columns), columns, height=2.2, share=False)
    for ax in grid.flat[len(standings.problems) :]:
        ax.set_visible(False)
    for ax, name in zip(grid.flat, standings.problems):
        for run in standings.runs(name, MINE + RATE):
            steps, rates = [r.data_points / r.batch_size for r in run], [r.loss for r in run]
            low, high = ([r.loss * math.exp(s * 2 * r.metric) for r in run] for s in (-1, 1))
            ax.plot(steps, rates, color=plots.BLUE, linewidth=1, label="RateFree, one line per seed")
            band = {"alpha": 0.15, "linewidth": 0, "label": "two standard deviations"}
            ax.fill_between(steps, low, high, color=plots.BLUE, **band)
        for run in standings.runs(name, tuned := standings.tuned(name, COSINE))[:1]:
            last = run[-1].data_points // run[-1].batch_size
            times, rate = range(0, last, max(1, last // 100)), float(tuned.rpartition(", ")[2])
            ax.plot(
                [t + 1 for t in times],
                [rate * warm_cosine(t, last) for t in times],
                color=plots.ORANGE,
                linewidth=1,
                label=f"{COSINE}, tuned",
            )
        ax.set(xscale="log", yscale="log", xlabel="steps", title=name)
    caption = (
        "The learning rate that RateFree found over time, and that of AdamW with warm-up and cosine at its best rate."
    )
    return Figure(plots.save_panels(fig, grid, folder / "rates.svg"), caption)


def notes(standings: Standings, seeds: Sequence[int]) -> list[str]:
    """How it was done, and what does not show in the figures."""
    by_set = {title: [n for n in standings.problems if set_of(n) == title] for title in SETS}
    steps = {name: net_problem(name).steps for name in standings.problems}
    run = {method for name in standings.problems for method in standings.peers(name)}
    absent = {method: package for method, package in missing(METHODS).items() if method not in run}
    return page.notes("bench-deep", seeds=seeds, sets=by_set, steps=steps, missing=absent)
