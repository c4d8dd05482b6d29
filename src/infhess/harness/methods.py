"""Methods of the harness: infhess, the paper, and the usual alternatives, each with the settings that tuning tries."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import torch
from torch import nn

from infhess.harness import training
from infhess.harness.training import AVERAGED, MakeOptimizer, Method, Online, Problem, Run, Training
from infhess.optim import Preconditioned
from infhess.problems.shuffled import CountedStream

# Makes a method from its setting; pickled for workers, so it is a module-level function or a `partial` of one.
Make = Callable[[float], Method]


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


def by_setting(run: Callable[..., Run]) -> Make:
    """A method from a run whose first argument is the setting."""
    return partial(partial, run)


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


def sgd(rate: float, momentum: float = 0.0) -> Method:
    """SGD, plain or with momentum."""
    return partial(Training, make=lambda p: torch.optim.SGD(p, lr=rate, momentum=momentum))


def adam(rate: float, run: type[Training] = Training) -> Method:
    """Adam with its default momentum."""
    return partial(run, make=lambda p: torch.optim.Adam(p, lr=rate))


def imported(params: list[nn.Parameter], path: str, **options: float) -> torch.optim.Optimizer:
    """An optimizer of a package that may not be installed, by its path."""
    package, _, name = path.rpartition(".")
    found: torch.optim.Optimizer = getattr(import_module(package), name)(params, **options)
    return found


def prodigy(scale: float) -> Method:
    """Prodigy; the setting is its d_coef."""
    return partial(Training, make=partial(imported, path="prodigyopt.Prodigy", lr=1.0, d_coef=scale))


def schedule_free(rate: float, base: str, run: type[Training] | None = None) -> Method:
    """Schedule-free SGD or AdamW."""
    return partial(run or ScheduleFree, make=partial(imported, path=f"schedulefree.{base}ScheduleFree", lr=rate))


class Cosine(Training):
    """A learning rate that falls to zero along a cosine over the budget, which has to be known."""

    def __init__(self, problem: Problem, stream: CountedStream, make: MakeOptimizer) -> None:
        super().__init__(problem, stream, make)
        steps = max(1, stream.budget // stream.size)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)

    def step(self) -> None:
        """A step of the optimizer, and one of the schedule."""
        super().step()
        self.schedule.step()


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
