"""Methods of the harness: infhess, the paper, and the usual alternatives, each with the settings that tuning tries."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from infhess.optim import Preconditioned
from infhess_bench.harness import training
from infhess_bench.harness.training import AVERAGED, MakeOptimizer, Method, Online, Problem, Run, Training
from infhess_bench.problems.shuffled import CountedStream

# Makes a method from its setting; pickled for workers, so it is a module-level function or a `partial` of one.
Make = Callable[[float], Method]
MakeSchedule = Callable[[torch.optim.Optimizer, int], Any]  # the number of steps ↦ a schedule of torch


@dataclass(frozen=True)
class Setting:
    """What a method runs with: a value, and which of its outcomes counts."""

    value: float = 0.0
    model: str = ""


@dataclass(frozen=True)
class Baseline:
    """A method with a setting: the values that tuning tries (none if there is nothing to set), and its default.

    `package` has to be installed; `models` are the outcomes that tuning chooses from.
    """

    make: Make
    grid: tuple[float, ...] = ()
    default: float | None = None
    models: tuple[str, ...] = ("", AVERAGED)
    package: str = ""

    @property
    def missing(self) -> bool:
        """Whether its package is not installed."""
        return bool(self.package) and importlib.util.find_spec(self.package.split("=")[0].replace("-", "_")) is None

    def tried(self) -> list[float]:
        """The values of its grid, including its default."""
        return sorted({*self.grid, *([self.default] if self.default else [])}) if self.grid else []

    def settings(self, tuned: Setting | None) -> dict[str, Setting]:
        """Settings by suffix of the method's name: the default, and the tuned one."""
        comes = self.default is not None or not self.grid
        found = {"": Setting(self.default or 0.0, tuned.model if tuned else self.models[-1])} if comes else {}
        return found | ({", tuned": tuned} if tuned else {})


def missing(methods: Mapping[str, Baseline]) -> dict[str, str]:
    """Methods whose package is not installed, with the package's name."""
    return {name: baseline.package for name, baseline in methods.items() if baseline.missing}


def fixed(method: Method) -> Make:
    """A method with nothing to set."""
    return partial(_whatever, method)


def _whatever(method: Method, value: float) -> Method:
    return method


def online(value: float = 0.0) -> Method:
    """infhess with `observe`: no learning rate; the value is ignored."""
    return partial(Online, make=lambda p: Preconditioned(torch.optim.SGD(p, lr=1.0)))


def updated(value: float = 0.0, rank: int | None = None) -> Method:
    """infhess with `update`: no learning rate; the value is ignored."""
    return partial(training.Updated, make=lambda p: Preconditioned(torch.optim.SGD(p, lr=1.0), rank=rank))


def paper(rate: float) -> Method:
    """The paper's preconditioned SGD: 16 products, rank 10, β = 1, α² = Σ₁/Σ_k times the rate of SGD."""
    return partial(training.UpdatedOnce, make=lambda p: paper_optimizer(p, rate))


def paper_optimizer(params: list[nn.Parameter], rate: float) -> Preconditioned:
    """The paper's method around SGD."""
    return Preconditioned(torch.optim.SGD(params, lr=rate), rank=10, steps=16, method="paper")


def paper_optimizer_for_nets(params: list[nn.Parameter], rate: float) -> Preconditioned:
    """The paper's method for nets: rank 2 per layer, around SGD."""
    return Preconditioned(torch.optim.SGD(params, lr=rate), rank=2, method="paper", blocks="layer")


def set_by(
    value: float, make: Callable[..., Any], run: Callable[..., Run] = Training, name: str = "lr", **options: Any
) -> Method:
    """Training with an optimizer whose learning rate, or another of its options, has this value."""
    return partial(run, make=partial(make, **{name: value}, **options))


def imported(params: list[nn.Parameter], path: str, **options: Any) -> torch.optim.Optimizer:
    """An optimizer of a package that may not be installed, by its path; some do not take frozen parameters."""
    package, _, name = path.rpartition(".")
    trained = [p for p in params if p.requires_grad]
    found: torch.optim.Optimizer = getattr(import_module(package), name)(trained, **options)
    return found


sgd: Callable[..., Method] = partial(set_by, make=torch.optim.SGD)
adam: Callable[..., Method] = partial(set_by, make=torch.optim.Adam)
prodigy: Make = partial(set_by, make=imported, path="prodigyopt.Prodigy", name="d_coef", lr=1.0)


class Scheduled(Training):
    """A learning rate with a schedule over the budget, which has to be known; by default a cosine that falls to zero."""

    def __init__(
        self, problem: Problem, stream: CountedStream, make: MakeOptimizer, schedule: MakeSchedule = CosineAnnealingLR
    ) -> None:
        super().__init__(problem, stream, make)
        steps = max(1, stream.budget // stream.size)
        self.schedules = [schedule(part, steps) for part in getattr(self.optimizer, "parts", [self.optimizer])]

    def step(self) -> None:
        """A step of the optimizer, and one of the schedule."""
        super().step()
        for schedule in self.schedules:
            schedule.step()


class ScheduleFree(Training):
    """Schedule-free training; the outcome is its own average."""

    def __init__(self, problem: Problem, stream: CountedStream, make: MakeOptimizer) -> None:
        super().__init__(problem, stream, make)
        self.shown = copy.deepcopy(self.model)
        self.optimizer.train()  # type: ignore[attr-defined]

    @property
    def models(self) -> dict[str, nn.Module]:
        """The weights to evaluate at."""
        self.optimizer.eval()  # type: ignore[attr-defined]
        self.shown.load_state_dict(self.model.state_dict())
        self.optimizer.train()  # type: ignore[attr-defined]
        return {"": self.shown}


def schedule_free(rate: float, base: str, run: type[ScheduleFree] = ScheduleFree) -> Method:
    """Schedule-free SGD or AdamW."""
    return set_by(rate, imported, run, path=f"schedulefree.{base}ScheduleFree")
