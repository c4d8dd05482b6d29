"""Is `RateFree` safe in any units, batch size, precision, labels and initialisation? Many short runs; none should be lost.

The same runs with the defaults of two other optimizers show how hard they are.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from infhess_bench.bench.deep_baselines import ADAM, METHODS, ROTATED, SCHEDULE_FREE
from infhess_bench.data import digits
from infhess_bench.harness import Job, Row, curve, ends, markdown, missing
from infhess_bench.problems import Data, NetProblem, seeded
from infhess_bench.problems.nets import CharRecurrent, CharTransformer, mlp

EXPERIMENT, RUNS, CHANCE = "bench-deep-safety", 500, math.log(10)
COMPARED = (ROTATED, ADAM, SCHEDULE_FREE)
FEWEST, MOST, POINTS = 100, 400, 3_200  # steps of a run: enough to read this many points, within bounds


@dataclass(frozen=True)
class Trial:
    """What is unusual about a run; the fields are those of the grid."""

    net: str
    loss: float
    weights: float
    start: float
    wrong_labels: float
    precision: str
    batch: int

    @property
    def name(self) -> str:
        """The name of the problem."""
        return (
            f"{self.net}, loss × {self.loss:g}, weights × {self.weights:g}, initialisation × {self.start:g}, "
            f"{self.wrong_labels:.0%} wrong labels, {self.precision}"
        )

    @property
    def steps(self) -> int:
        """The number of steps."""
        return min(MOST, max(FEWEST, POINTS // self.batch))

    def problem(self) -> NetProblem:
        """The net on digits, in these units and from this start."""
        return NetProblem(
            lambda: InUnits(started(NETS[self.net](), self.start), self.weights, self.precision),
            lambda: labelled(self.wrong_labels),
            lambda outputs, y: self.loss * functional.cross_entropy(outputs, y),
            self.batch,
        )


class Rows(nn.Module):
    """Reads an image as a sequence of rows of eight intensities, for a sequence net; the last output counts."""

    def __init__(self, net: CharRecurrent | CharTransformer, width: int) -> None:
        super().__init__()
        net.letters = nn.Linear(8, width)  # type: ignore[assignment]
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """(n, 1, 8, 8) ↦ (n, 10)."""
        found: Tensor = self.net(x[:, 0])[:, -1]
        return found


def convolutions() -> nn.Module:
    """Two convolutions, the second with group normalisation."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, bias=False), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


NETS: dict[str, Any] = {
    "MLP": lambda: nn.Sequential(nn.Flatten(), *mlp(64, 24, 16, 10)),
    "CNN": convolutions,
    "GRU": lambda: Rows(CharRecurrent(10, 16), 16),
    "transformer": lambda: Rows(CharTransformer(10, 8, 16, 2, 1), 16),
}
GRID: dict[str, tuple[Any, ...]] = {
    "net": tuple(NETS), "loss": (1e-3, 1.0, 1e3), "weights": (1e-3, 1.0, 1e3), "start": (0.1, 1.0, 10.0),
    "wrong_labels": (0.0, 0.2, 0.5), "precision": ("float32", "bfloat16 autocast"), "batch": (1, 4, 16, 64, 256, 1024),
}  # fmt: skip


class InUnits(nn.Module):
    """The same function of weights that are `scale` times as large."""

    def __init__(self, net: nn.Module, scale: float, precision: str = "float32") -> None:
        super().__init__()
        self.net, self.scale, self.low = net, scale, precision != "float32"
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        """The function, with the weights divided by the scale."""
        weights = {name: p / self.scale for name, p in self.net.named_parameters()}
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            found: Tensor = functional_call(self.net, weights, (x,))
        return found.float() if self.low else found


def started(net: nn.Module, scale: float) -> nn.Module:
    """The net with its matrices multiplied by a number."""
    with torch.no_grad():
        for p in net.parameters():
            if p.ndim > 1:
                p.mul_(scale)
    return net


@lru_cache(maxsize=3)
def labelled(wrong: float) -> tuple[Data, Data]:
    """Handwritten digits; a share of the training labels is replaced by random ones."""
    x, y = digits()
    x, draw = x[:, None].float() / 16, torch.Generator().manual_seed(3)
    drawn = torch.where(torch.rand(len(y), generator=draw) < wrong, torch.randint(10, y.shape, generator=draw), y)
    return (x[:1400], drawn[:1400]), (x[1400:], y[1400:])


def trials(seed: int, runs: int = RUNS) -> list[Trial]:
    """Drawn without replacement from all combinations."""
    return random.Random(seed).sample([Trial(*values) for values in product(*GRID.values())], runs)


def jobs(seed: int, *, quick: bool = False) -> Iterator[Job]:
    """The trials with each installed method; with `quick` a tenth of them."""
    absent = missing(METHODS)
    for method in [name for name in COMPARED if name not in absent]:
        for trial in trials(seed, RUNS // 10 if quick else RUNS):
            yield Job(Row(EXPERIMENT, trial.name, method, seed, trial.batch), run, (trial,))


def run(template: Row, trial: Trial) -> list[Row]:
    """The objective in the usual units at the start (metric) and at the end (loss)."""
    problem, method = trial.problem(), METHODS[template.method]
    rows = curve(problem, method.make(method.default or 0.0), template, trial.steps * trial.batch, ("",), math.inf)
    with seeded(template.seed):
        first = problem.value(problem.model()) / trial.loss
    (end,) = ends(rows)
    return [replace(end, loss=end.loss / trial.loss, metric=first)]


def lost(row: Row) -> bool:
    """Not finite, not below the start, at chance (the same output for all images), or above chance and not halved.

    From ten times the usual weights, such a short run may still be above chance: Adam's default is.
    """
    dead = abs(row.loss - CHANCE) < 0.01
    return dead or not row.loss < min(row.metric, max(CHANCE, row.metric / 2))


def summary(rows: Sequence[Row]) -> str:
    """Lost runs of each method; those of infhess by name, and by each property that is varied."""
    of = {(t.name, t.batch): t for t in (Trial(*values) for values in product(*GRID.values()))}
    mine = [row for row in rows if row.method == ROTATED]
    found = [(of[row.problem, row.batch_size], lost(row)) for row in mine]
    lines = [["what", "value", "runs", "lost"]]
    for name, values in GRID.items():
        runs, gone = (Counter(getattr(t, name) for t, dead in found if dead >= least) for least in (False, True))
        lines += [[name.replace("_", " "), str(v), str(runs[v]), str(gone[v])] for v in values if runs[v]]
    named = [f"- {r.problem}, batch {r.batch_size}: {r.loss:.4g}, {r.metric:.4g} at the start" for r in mine if lost(r)]
    head = (
        f"Lost: {len(named)} of {len(mine)} runs. A run is lost if its objective is not finite, not below that at the start, "
        f"at chance ({CHANCE:.3f}), or above chance and not halved.\n"
    )
    return "\n".join([head, *named, *([""] if named else []), markdown(lines), _compared(rows)])


def _compared(rows: Sequence[Row]) -> str:
    """By method: runs, lost runs, and those lost only here or only with infhess."""
    cells = {(row.method, row.problem, row.batch_size): lost(row) for row in rows}
    lines = [["method", "runs", "lost", "lost where infhess is not", "not lost where infhess is"]]
    for method in dict.fromkeys(row.method for row in rows):
        both = [(dead, cells.get((ROTATED, p, b), dead)) for (name, p, b), dead in cells.items() if name == method]
        counts = len(both), sum(a for a, _ in both), sum(a > b for a, b in both), sum(a < b for a, b in both)
        lines.append([method, *map(str, counts)])
    return markdown(lines)
