"""The results of the bench of nets: targets, tables, a performance profile, learning rates, and a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from infhess._version import __version__
from infhess_bench.bench.deep_baselines import ADAM, COSINE, METHODS, MUON, NO_RATE, SCHEDULE_FREE, SOAP, warm_cosine
from infhess_bench.bench.standings import COSTS, MEASURES, MINE, Standings, behind_until, default_of
from infhess_bench.experiments import page, plots
from infhess_bench.experiments.page import Figure, Page
from infhess_bench.harness import ITERATES, RATE, Cells, Row, Target, at_least, at_most, missing, target_cells
from infhess_bench.problems.net_sets import SETS, net_problem, set_of

L = TypeVar("L")  # a line of a profile
LISTED = 3  # problems named in a target
SHOWN_AS = {"test error": "test accuracy"}  # what tables show instead of a measure
LEVEL = 1.1  # a measure up to this many times another is within 10 % of it
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
    """Goals against defaults and learning-rate-free methods, and against the best tuned one, in each measure."""
    for measure in MEASURES:
        of = [name for name in names if name in standings.measured(measure)]
        of = [name for name in of if standings.peers(name)]
        default, tuned = ({n: standings.ratio(n, measure, tuned=best) for n in of} for best in (False, True))
        for what, ratios, level, share in (
            ("ahead of all peers at their defaults", default, 1.0, 0.9),
            ("ahead of the best tuned peer", tuned, 1.0, 0.5),
            ("ahead of the best tuned peer or within 10 % of it", tuned, LEVEL, 1.0),
        ):
            yield from _share(f"{title}, {measure}: {what}", {n: r <= level for n, r in ratios.items()}, share)
    right: dict[str, bool] = {}
    for name in [name for name in names if name in standings.measured("test error")]:
        titles = MINE, standings.best(name, "test error", tuned=True)
        mine, best = (1 - standings.end(name, title, "test error") for title in titles)
        right |= {} if math.isnan(best) else {name: LEVEL * mine >= best}
    yield from _share(f"{title}, test accuracy: within 10 % of that of the best tuned peer", right, 1.0)


def _way(standings: Standings, title: str, names: Sequence[str]) -> Iterator[Target]:
    """Seconds and gradients to the final objective of tuned AdamW with a schedule, the start, and lost runs."""
    raced = [name for name in names if standings.goals(name)]
    for of in COSTS:
        won = {n: standings.cost(n, MINE, of) <= standings.cost(n, standings.tuned(n, COSINE), of) for n in raced}
        yield from _share(f"{title}: fewer {of} to the final objective of {COSINE}, tuned", won, 0.5)
    rival = default_of(SCHEDULE_FREE)
    until = {n: behind_until(standings, n, rival) for n in names if standings.runs(n, rival)}
    slow = [f"{name} until {share:.0%}" for name, share in until.items() if share]
    what = f"{title}: problems where it is behind {rival} at some time from 5 % of the run on"
    yield at_most(_listed(what, slow), len(slow), 0)
    runs = [run for name in names for run in standings.runs(name, MINE)]
    yield at_most(f"{title}: runs lost, of {len(runs)}", sum(math.isinf(run[-1].loss) for run in runs), 0)


def _share(what: str, met: dict[str, bool], least: float) -> Iterator[Target]:
    """The share of problems where a goal holds, with the names of those where it does not."""
    if met:
        title = _listed(f"{what}, share of {len(met)}", [name for name, holds in met.items() if not holds])
        yield at_least(title, sum(met.values()) / len(met), least)


def _listed(what: str, names: Sequence[str]) -> str:
    """A text with the first few names where it does not hold, so that a cell stays short."""
    more = f"; {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{what} ({'; '.join(names[:LISTED])}{more})" if names else what


def summary(standings: Standings) -> Cells:
    """infhess next to baselines: objective / test loss / test accuracy, each at the rate that is best for it."""
    columns: dict[str, Callable[[str, str], str]] = {
        "infhess": lambda name, measure: MINE,
        "best peer at its default": partial(standings.best, tuned=False),
        f"{COSINE}, tuned": lambda name, measure: standings.tuned(name, COSINE, measure),
        "best peer, tuned": partial(standings.best, tuned=True),
    }
    lines = [[name, *(_all(standings, name, pick) for pick in columns.values())] for name in standings.problems]
    return [["problem", *columns], *lines]


def _all(standings: Standings, name: str, pick: Callable[[str, str], str]) -> str:
    """All measures, each for the method picked for it."""
    return " / ".join(_shown(standings.end(name, pick(name, m), m), m) for m in MEASURES)


def everything(standings: Standings) -> list[tuple[str, Cells]]:
    """All methods at all rates: each measure at the end, the cost to the goal, and seconds of the whole run."""
    seconds = "CPU seconds"
    tables: list[tuple[str, str, Callable[[str, str], str]]] = [
        *((SHOWN_AS.get(m, m),) * 2 + (lambda name, title, m=m: _shown(standings.end(name, title, m), m),) for m in MEASURES),
        *((f"{c} to the goal", f"{c} to it", lambda name, title, c=c: _count(standings.cost(name, title, c))) for c in COSTS),
        (f"{seconds} of the whole run", f"{seconds} in all", lambda name, title: _count(standings.spent(name, title, seconds))),
    ]  # fmt: skip
    names, titles = standings.problems, dict.fromkeys(t for name in standings.problems for t in standings.titles(name))
    lines = sorted(titles, key=lambda title: (not title.startswith("infhess"), title.rpartition(", ")[0]))
    return [
        (f"All methods at all rates: {what}", [[head, *names], *([t, *(cell(n, t) for n in names)] for t in lines)])
        for what, head, cell in tables
    ]


def _shown(x: float, measure: str) -> str:
    if math.isnan(x):
        return "–"
    if measure in SHOWN_AS:
        return f"{100 * (1 - x):.1f} %"
    return "lost" if math.isinf(x) else f"{x:.3g}" if abs(x) < 100 else f"{x:.1f}"


def _count(x: float) -> str:
    return "–" if math.isnan(x) else "never" if math.isinf(x) else f"{x:.3g}" if x < 1000 else f"{x:,.0f}"


def report(rows: Sequence[Row], seeds: Sequence[int], folder: Path) -> str:
    """summary.md, targets.md, table.md, figures and report.html; returns the first two."""
    standings = Standings(rows, seeds)
    lead, aims = summary(standings), target_cells(targets(standings))
    whole = Page(
        "Nets without a rate, head to head",
        f"infhess {__version__} and what users would pick instead: infhess bench deep --seed {seeds[0]}",
        (),
        [_profile(standings, folder), _rates(standings, folder), *_iterates(standings, folder)],
        notes(standings, seeds),
        [("At the end: objective / test loss / test accuracy", lead), ("Targets", aims), *everything(standings)],
    )
    return whole.write(folder, heading="", summary=lead, targets=aims)


def profile(values: Mapping[str, Mapping[L, float]]) -> dict[L, list[float]]:
    """By line, the sorted ratios to the best of all lines, problem by problem: the data of a performance profile.

    Dolan & Moré 2002, as AlgoPerf draws it (Dahl et al. 2023). `values` are by problem and line; infinite if never solved.
    """
    found: dict[L, list[float]] = {}
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
        ratios = profile(
            {n: {key: value(n, standings.tuned(n, key[0]) if key[1] else default_of(key[0])) for key in LINES}
             for n in standings.problems}
        )  # fmt: skip
        for (method, tuned), (colour, dashes) in LINES.items():
            name = f"{method}, tuned" if tuned else method
            _staircase(ax, ratios.get((method, tuned), []), dashes, color=colour, label=name)
        ax.set(xscale="log", xlim=(1, 10), ylim=(0, 1.02), xlabel=f"τ: {label} over the least")
    grid[0, 0].set_ylabel("share of problems within τ")
    caption = (
        "Performance profile: the share of problems on which a method is within a factor τ of the best. The goal is the "
        "final objective of AdamW with warm-up and cosine at its best rate."
    )
    return Figure(plots.save_panels(fig, grid, folder / "profile.svg"), caption)


def _staircase(ax: Any, ratios: Sequence[float], dashes: str, **style: str) -> None:
    if ratios:
        solved = [r for r in ratios if r < math.inf]
        heights = [i / len(ratios) for i in range(len(solved) + 1)]
        ax.step([1.0, *solved, 1e3], [*heights, heights[-1]], dashes, where="post", **style)


def _panels(names: Sequence[str]) -> tuple[Any, Any]:
    """A figure with a panel per problem, over steps, both axes logarithmic."""
    columns = min(4, len(names))
    fig, grid = plots.grid(-(-len(names) // columns), columns, height=2.2, share=False)
    for ax in grid.flat[len(names) :]:
        ax.set_visible(False)
    for ax, name in zip(grid.flat, names):
        ax.set(xscale="log", yscale="log", xlabel="steps", title=name)
    return fig, grid


def _rates(standings: Standings, folder: Path) -> Figure:
    """The learning rate found over time, with its uncertainty, next to that of the tuned cosine."""
    fig, grid = _panels(standings.problems)
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
            rates = [rate * warm_cosine(t, last) for t in times]
            ax.plot([t + 1 for t in times], rates, color=plots.ORANGE, linewidth=1, label=f"{COSINE}, tuned")
    caption = (
        "The learning rate that RateFree found over time, and that of AdamW with warm-up and cosine at its best rate."
    )
    return Figure(plots.save_panels(fig, grid, folder / "rates.svg"), caption)


def _iterates(standings: Standings, folder: Path) -> Iterator[Figure]:
    """What the rule of RateFree sees over time: the spread of iterates and the size of scaled gradients."""
    names = [name for name in standings.problems if standings.runs(name, MINE + ITERATES)]
    if not names:
        return
    lines: dict[str, tuple[str, Callable[[Row], float]]] = {
        "|z − x| / |x|": (plots.BLUE, lambda row: row.loss),
        "scaled gradient, root mean square": (plots.ORANGE, lambda row: row.metric),
    }
    fig, grid = _panels(names)
    for ax, name in zip(grid.flat, names):
        for run, (label, (colour, value)) in product(standings.runs(name, MINE + ITERATES), lines.items()):
            steps = [row.data_points / row.batch_size for row in run]
            ax.plot(steps, [value(row) for row in run], color=colour, linewidth=1, label=label)
    caption = "How far the newest iterate z is from the average x, and the size of scaled gradients, over time."
    yield Figure(plots.save_panels(fig, grid, folder / "iterates.svg"), caption)


def notes(standings: Standings, seeds: Sequence[int]) -> list[str]:
    """How it was done, and what the figures do not show."""
    by_set = {title: [n for n in standings.problems if set_of(n) == title] for title in SETS}
    steps = {name: net_problem(name).steps for name in standings.problems}
    run = {method for name in standings.problems for method in standings.peers(name)}
    absent = {method: package for method, package in missing(METHODS).items() if method not in run}
    return page.notes("bench-deep", seeds=seeds, sets=by_set, steps=steps, missing=absent)
