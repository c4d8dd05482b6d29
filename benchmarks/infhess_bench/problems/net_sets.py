"""Net problems by name: sets of problems, and longer runs of them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from infhess_bench.problems.final import FINAL
from infhess_bench.problems.fresh import FRESH
from infhess_bench.problems.held_out import HELD_OUT
from infhess_bench.problems.net_problems import DEEP, FULL, LARGE, NetProblem

# By what development saw: its own problems; those that earlier rules were run on; and those of the present comparison.
SETS: dict[str, dict[str, NetProblem]] = {
    "development": DEEP, "full width": FULL, "large": LARGE, "held-out": HELD_OUT, "final": FINAL, "fresh": FRESH,
}  # fmt: skip
SLOW = ("full width", "large")
TIMES = " ×"


def longer(name: str, length: int) -> str:
    """The name of a problem with this many times its steps."""
    return name if length == 1 else f"{name}{TIMES}{length}"


def base(name: str) -> tuple[str, int]:
    """The problem's own name, and its length."""
    found, _, length = name.partition(TIMES)
    return found, int(length or 1)


def set_of(name: str) -> str:
    """The set that contains a problem."""
    return next(title for title, problems in SETS.items() if base(name)[0] in problems)


@lru_cache(maxsize=1)
def net_problem(name: str) -> NetProblem:
    """A problem by name; its data is cached for the next run in this process."""
    own, length = base(name)
    problem = SETS[set_of(name)][own]
    return replace(problem, steps=length * problem.steps)
