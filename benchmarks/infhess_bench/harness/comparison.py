"""A comparison: problems × methods × budgets → jobs → rows; and tuning, on a seed that is not reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from infhess.cli.rows import Row
from infhess_bench.harness.jobs import Job
from infhess_bench.harness.methods import Baseline, Make, Setting
from infhess_bench.harness.tables import write
from infhess_bench.harness.training import AVERAGED, Models, Problem, curve

TUNING_SEED = 1000
ByName = Callable[[str], Problem]
Kept = Callable[[list[Row], int], list[Row]] | None


@dataclass(frozen=True)
class Cell:
    """A problem at a batch size, with a budget."""

    problem: str
    batch: int
    budget: int

    def key(self, method: str) -> str:
        """The key of a method's setting in this cell."""
        return f"{self.problem}/{self.batch}/{method}"


@dataclass(frozen=True)
class Comparison:
    """Runs of methods on cells. `kept` gets the rows of a curve and its budget, and returns those to store."""

    experiment: str
    problem: ByName
    kept: Kept = None
    spacing: float | None = None

    def jobs(
        self, cells: Sequence[Cell], methods: Mapping[str, Baseline], seeds: Sequence[int], settings: dict[str, Setting]
    ) -> Iterator[Job]:
        """Jobs of each installed method: with its default setting, and as tuned.

        Methods take turns, seed by seed: a machine that is slow for a while is slow for all of them.
        """
        for cell, seed, (name, baseline) in product(cells, seeds, methods.items()):
            best = settings.get(cell.key(name))
            for suffix, setting in ({} if baseline.missing else baseline.settings(best)).items():
                yield self.job(cell, name + suffix, baseline.make, setting, seed)

    def tuning(self, cells: Sequence[Cell], methods: Mapping[str, Baseline]) -> Iterator[Job]:
        """The tuning grids: one job per value, with all outcomes."""
        for cell in cells:
            for name, baseline in methods.items():
                for value in () if baseline.missing else baseline.tried():
                    template = Row(self.experiment, cell.problem, f"{name}: {value:g}", TUNING_SEED, cell.batch)
                    yield self._job(template, cell.budget, baseline.make, value, baseline.models)

    def job(self, cell: Cell, title: str, make: Make, setting: Setting, seed: int) -> Job:
        """One curve, under its own name."""
        template = Row(self.experiment, cell.problem, title, seed, cell.batch)
        return self._job(template, cell.budget, make, setting.value, (setting.model,))

    def _job(self, template: Row, budget: int, make: Make, value: float, models: Models) -> Job:
        return Job(template, run, (self.problem, self.kept, budget, make, value, models, self.spacing))


def run(
    template: Row, problem: ByName, kept: Kept, budget: int, make: Make, value: float, models: Models, gap: float | None
) -> list[Row]:
    """The rows of one run to store; `gap` is the spacing of rows."""
    rows = curve(problem(template.problem), make(value), template, budget, models, gap)
    return kept(rows, budget) if kept else rows


def best_settings(rows: Sequence[Row], score: Callable[[Row], float]) -> dict[str, Setting]:
    """From rows of tuning: the setting with the lowest score for each problem, batch size and method."""
    found: dict[str, tuple[float, Setting]] = {}
    for row in rows:
        method, colon, value = row.method.removesuffix(AVERAGED).rpartition(": ")
        key = Cell(row.problem, row.batch_size, 0).key(method)
        if colon and (key not in found or score(row) < found[key][0]):
            found[key] = score(row), Setting(float(value), AVERAGED if row.method.endswith(AVERAGED) else "")
    return {key: setting for key, (_, setting) in found.items()}


def write_settings(found: Mapping[str, Setting], path: Path) -> Path:
    """Write settings in the format of the package's own files."""
    content = {key: [s.value, s.model] for key, s in sorted(found.items())}
    return write(path, json.dumps(content, indent=0) + "\n")


def read_settings(text: str) -> dict[str, Setting]:
    """Read such a file."""
    return {key: Setting(value, model) for key, (value, model) in json.loads(text).items()}
