"""The paper's experiments, from jobs to a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infhess._version import __version__
from infhess_bench.experiments import deep_experiment, deep_report, logistic, regression
from infhess_bench.experiments.convex_experiment import named
from infhess_bench.experiments.page import Page, claim_list
from infhess_bench.harness import EXACT, START, TUNING_SEED, Job, Row, RowFile, write

# Titles, sizes, and the module that reads the rows with `claims`, `figures` and `notes`.
EXPERIMENTS: dict[str, tuple[str, Mapping[str, Any], Any]] = {
    "regression": ("Regression: an ill-conditioned problem with an exact solution", regression.SIZES, regression),
    "logistic": ("Logistic regression: MNIST, 3 against 5", logistic.SIZES, logistic),
    "deep": ("Deep learning: the step length of a net on CIFAR-10", deep_experiment.SIZES, deep_report),
}


@dataclass(frozen=True)
class Plan:
    """One experiment at one size."""

    experiment: str
    size: Any
    seeds: tuple[int, ...]
    reporting: Any

    def stages(self, file: RowFile) -> Iterator[list[Job]]:
        """Jobs to run, stage by stage: the rates found by tuning go into the runs."""
        if self.experiment == "deep":
            yield list(deep_experiment.jobs(self.size, self.seeds, file.path.parent))
            return
        yield list(self.reporting.tuning(self.size))
        yield list(self.reporting.runs(self.size, self.rows(file, TUNING_SEED), self.seeds))

    def rows(self, file: RowFile, *seeds: int) -> list[Row]:
        """The rows of this experiment, size and seeds."""
        name = named(f"reproduce-{self.experiment}", self.size.name)
        return [r for r in file.rows if r.experiment == name and (r.seed in seeds or r.method in (EXACT, START))]

    def report(self, file: RowFile, folder: Path) -> Page:
        """Write figures, report.html and claims.md to the folder."""
        rows = self.rows(file, *self.seeds)
        option = "" if self.size.name == "default" else f" --{self.size.name}"
        page = Page(
            EXPERIMENTS[self.experiment][0],
            "De Roos & Hennig, Active Probabilistic Inference on Matrices for Pre-Conditioning in Stochastic Optimization "
            f"(AISTATS 2019), computed anew with infhess {__version__}: infhess reproduce {self.experiment}{option}",
            self.reporting.claims(rows),
            self.reporting.figures(rows, folder),
            self.reporting.notes(self.size, self.seeds),
        )
        write(folder / "claims.md", claim_list(page.claims))
        write(folder / "report.html", page.html())
        left = folder / "unfinished"
        if left.is_dir() and not any(left.iterdir()):
            left.rmdir()
        return page


def plan(experiment: str, size: str, first: int, count: int | None) -> Plan:
    """The plan of an experiment at a size, for this many seeds from the first on."""
    _, sizes, reporting = EXPERIMENTS[experiment]
    return Plan(experiment, sizes[size], tuple(range(first, first + (count or sizes[size].seeds))), reporting)
