"""The learning-rate rule of RateFree with one thing changed at a time: what each part contributes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from infhess_bench.bench.deep_baselines import ROTATED
from infhess_bench.bench.deep_bench import Selection
from infhess_bench.bench.rate_free_runs import RateFreeRun
from infhess_bench.harness import ACCURACY, Comparison, Curves, Job, Method, Problem, Row, Setting, markdown
from infhess_bench.problems.net_sets import net_problem
from infhess_bench.problems.shuffled import CountedStream

EXPERIMENT = "bench-deep-variants"


@dataclass(frozen=True)
class Variant:
    """Changed constants of the rule, and changed options of RateFree."""

    constants: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


VARIANTS = {
    "as it is": Variant(),
    "twice the rate a step at first, with a probe each time": Variant(
        {"growth": 2.0, "grown": 2.0, "early": math.inf, "first_probes": 2.0, "share": 0.5}
    ),
    "a longest step of 20 % of |w|": Variant({"longest": 0.2}),
    "σ falls with no noise": Variant({"noisy_steps": math.inf}),
    "σ falls four times as fast": Variant({"noisy_steps": 50.0}),
    "half σ": Variant({"sigma": 4.0}),
    "no decay": Variant(options={"weight_decay": 0.0}),
    "all of what noise adds is taken off": Variant({"shrinkage": 1.0}),
    "four times what noise adds is taken off": Variant({"shrinkage": 4.0}),
    "ε a hundred times larger": Variant(options={"eps": 0.1}),
    "weight decay .1": Variant(options={"weight_decay": 0.1}),
    "weight decay 1": Variant(options={"weight_decay": 1.0}),
}


class Varied(RateFreeRun):
    """A run of a variant."""

    def __init__(self, problem: Problem, stream: CountedStream, title: str) -> None:
        super().__init__(problem, stream, "kronecker", **VARIANTS[title].options)
        state = self.optimizer._rate_state
        state.rule = replace(state.rule, **VARIANTS[title].constants)


def varied(number: float) -> Method:
    """The variant with this number."""
    return partial(Varied, title=list(VARIANTS)[int(number)])


def jobs(chosen: Selection) -> Iterator[Job]:
    """Every variant on every problem."""
    comparison = Comparison(EXPERIMENT, net_problem, None, math.inf)
    for cell, (number, title), seed in product(chosen.cells(), enumerate(VARIANTS), chosen.seeds):
        yield comparison.job(cell, f"{ROTATED}: {title}", varied, Setting(float(number)), seed)


def summary(rows: Sequence[Row]) -> str:
    """Objective (test loss, test accuracy) at the end, mean over seeds."""
    curves, sizes = Curves(rows), {row.problem: row.batch_size for row in rows}
    lines = [[title, *(_ended(curves, *size, f"{ROTATED}: {title}") for size in sizes.items())] for title in VARIANTS]
    return markdown([["objective (test loss, accuracy)", *sizes], *lines])


def _ended(curves: Curves, problem: str, size: int, method: str) -> str:
    last, right = (curves.ends(problem, name, size) for name in (method, method + ACCURACY))
    if not last:
        return "–"
    shown = f"{fmean(r.loss for r in last):.3g} ({fmean(r.metric for r in last):.3g}"
    return f"{shown}, {fmean(r.metric for r in right):.1%})" if right else f"{shown})"
