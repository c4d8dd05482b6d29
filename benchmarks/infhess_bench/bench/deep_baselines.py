"""Methods for nets: one entry per method, with the rates that tuning tries and its default."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import LambdaLR

from infhess.optim import Preconditioned
from infhess.optim.averaging.batch_norm import Statistics
from infhess_bench.bench.rate_free_runs import RateFreeByDifferences, RateFreeRun
from infhess_bench.harness import MakeOptimizer, Online, Problem, Training, methods
from infhess_bench.harness.methods import (
    Baseline,
    Make,
    Scheduled,
    ScheduleFree,
    fixed,
    imported,
    schedule_free,
    set_by,
)
from infhess_bench.problems.shuffled import CountedStream, Data

# Batches on which BatchNorm's statistics are recomputed for the averages of baselines: as many as for infhess.
RECENT = 16

# The low-rank preconditioner: directions per layer, steps before the first estimate, and steps between estimates.
RANK, FIRST, BETWEEN = 8, 100, 400


class Refreshed(ScheduleFree):
    """Schedule-free as its authors recommend: BatchNorm's statistics are recomputed for the averaged weights."""

    def __init__(self, problem: Problem, stream: CountedStream, make: MakeOptimizer) -> None:
        super().__init__(problem, stream, make)
        self.shown_loss, self.recent = problem.loss(self.shown), deque[Data](maxlen=RECENT)

    def observe(self, batch: Data) -> None:
        """Keep the batch."""
        self.recent.append(batch)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The weights to evaluate at."""
        found = super().models
        norms = [m for m in self.shown.modules() if isinstance(m, _BatchNorm)]
        Statistics(norms).gather([(self.shown_loss, batch) for batch in self.recent], list(self.shown.parameters()))
        return found


class Averaged(Training):
    """DoG with the polynomial averaging that its authors recommend."""

    def __init__(self, problem: Problem, stream: CountedStream) -> None:
        from dog import DoG, PolynomialDecayAverager

        super().__init__(problem, stream, DoG)
        self.averager = PolynomialDecayAverager(self.model)

    @property
    def models(self) -> dict[str, nn.Module]:
        """The average."""
        return {"": self.averager.averaged_model}

    def step(self) -> None:
        """One batch."""
        super().step()
        self.averager.step()


def warm_cosine(t: int, steps: int) -> float:
    """The relative rate in step t: it rises over the first twentieth of all steps, then falls to zero along a cosine."""
    return min((t + 1) / max(1, steps // 20), 0.5 + 0.5 * math.cos(math.pi * min(t / steps, 1.0)))


def warmed(optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """The schedule of such a rate."""
    return LambdaLR(optimizer, partial(warm_cosine, steps=steps))


class Hutchinson(Training):
    """Sophia: a product with a random vector every ten steps, on the batch of the step."""

    optimizer: Any

    def step(self) -> None:
        """One batch, keeping the graph of the gradient if a product is due."""
        batch = next(self.stream)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        due = (self.optimizer.param_groups[0].get("step", 0)) % self.optimizer.update_period == 0
        with sdpa_kernel(SDPBackend.MATH) if due else nullcontext():  # fused attention has no second derivatives
            gradients = torch.autograd.grad(self.loss(batch), trained, create_graph=due)
        for p, g in zip(trained, gradients):
            p.grad = g + 0 * p if due and not g.requires_grad else g  # linear in p, e.g. a bias under absolute values
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.products += due


def orthogonal(g: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Muon's Newton–Schulz iteration in float32: torch's, in bfloat16, is thirty times slower on a CPU."""
    a, b, c = coefficients
    x = g if len(g) <= g.shape[1] else g.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if len(g) <= g.shape[1] else x.T


class MuonAdamW:
    """Muon for matrices, AdamW for all else, as its authors recommend; with one rate, in units of AdamW's."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        trained = [p for p in params if p.requires_grad]
        matrices = [p for p in trained if p.ndim == 2]
        others = [p for p in trained if p.ndim != 2]
        self.parts: list[torch.optim.Optimizer] = []
        self.parts += [torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw")] if matrices else []
        self.parts += [torch.optim.AdamW(others, lr=lr)] if others else []

    def zero_grad(self) -> None:
        """Zero the gradients of both."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Make a step of both."""
        with patch("torch.optim._muon._zeropower_via_newtonschulz", orthogonal):
            for part in self.parts:
                part.step()


class Ranked(Online):
    """With a preconditioner of rank 8 per layer, estimated now and then; after that `observe` finds the rate again."""

    def __init__(self, problem: Problem, stream: CountedStream) -> None:
        super().__init__(problem, stream, partial(around, base="sgd", rate=1e-2, rank=RANK, blocks="layer"))
        self.made = 0

    def step(self) -> None:
        """One batch, after an estimate if one is due."""
        if self.made % BETWEEN == FIRST:
            with suppress(ValueError):  # the curvature is not finite: keep the last estimate
                self.count(self.optimizer.update(self.loss, self.stream))
        self.made += 1
        super().step()


BASES: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "Adam": lambda p, rate: torch.optim.Adam(p, lr=rate),
    "momentum .9": lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.9),
    "sgd": lambda p, rate: torch.optim.SGD(p, lr=rate),
}


def around(params: Any, base: str, rate: float, **options: Any) -> Preconditioned:
    """`Preconditioned` around a base that was made with this rate."""
    return Preconditioned(BASES[base](params, rate), **options)


NO_RATE, ADAM, SGD, SCHEDULE_FREE = "infhess, no learning rate", "Adam", "sgd", "schedule-free AdamW"
ROTATED, COSINE, SOAP = f"{NO_RATE}, rotated", "AdamW, warm-up and cosine", "SOAP"
MUON = f"Muon and {COSINE}"
NAMED = {NO_RATE: "diagonal", ROTATED: "kronecker"}
AROUND = {base: f"infhess, online {base}" for base in BASES}
RANKED = f"{AROUND['sgd']}, rank {RANK} per layer"


_cosine = partial(set_by, run=partial(Scheduled, schedule=warmed))
_of_another_package = partial(set_by, make=imported)
_prodigy_schedule_free = partial(
    set_by, make=imported, run=Refreshed, name="d_coef", path="prodigyplus.ProdigyPlusScheduleFree", split_groups=False
)


def _net(make: Make, grid: tuple[float, ...] = (), default: float | None = None, package: str = "") -> Baseline:
    """A baseline; methods have one outcome here."""
    return Baseline(make, grid, default, ("",), package)


def decades(rate: float, number: int) -> float:
    """The rate times ten to this power, without rounding errors in its digits."""
    return float(f"{rate * 10.0**number:.6g}")


def _around(make: Make, default: float, package: str = "") -> Baseline:
    """Tuned over its default and a decade on both sides; if an edge is best, the bench tries a decade further."""
    return _net(make, (decades(default, -1), decades(default, 1)), default, package)


METHODS: dict[str, Baseline] = {
    **{name: _net(fixed(partial(RateFreeRun, scaling=s))) for name, s in NAMED.items()},
    **{f"{name}, differences": _net(fixed(partial(RateFreeByDifferences, scaling=s))) for name, s in NAMED.items()},
    **{
        AROUND[base]: _net(partial(set_by, make=around, run=Online, name="rate", base=base), (), 1e-2) for base in BASES
    },
    RANKED: _net(fixed(Ranked)),
    SGD: _net(methods.sgd, (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), 1e-3),
    "momentum .9": _net(partial(methods.sgd, momentum=0.9), (0.0003, 0.003, 0.01, 0.03, 0.1), 1e-3),
    ADAM: _around(methods.adam, 1e-3),
    "Prodigy": _around(methods.prodigy, 1.0, "prodigyopt"),
    "D-Adaptation": _net(partial(_of_another_package, path="dadaptation.DAdaptAdam"), (), 1.0, "dadaptation"),
    "DoG": _net(fixed(Averaged), (), 1.0, "dog"),
    "schedule-free sgd": _net(partial(schedule_free, base="SGD", run=Refreshed), (), 1.0, "schedulefree"),
    SCHEDULE_FREE: _around(partial(schedule_free, base="AdamW", run=Refreshed), 0.0025, "schedulefree"),
    SOAP: _around(partial(_of_another_package, path="pytorch_optimizer.SOAP"), 3e-3, "pytorch_optimizer"),
    "Sophia": _around(
        partial(_of_another_package, path="pytorch_optimizer.SophiaH", run=Hutchinson), 6e-2, "pytorch_optimizer"
    ),
    MUON: _around(partial(_cosine, make=MuonAdamW), 1e-3),
    COSINE: _around(partial(_cosine, make=torch.optim.AdamW), 1e-3),
    "NAdam": _around(partial(set_by, make=torch.optim.NAdam), 2e-3),
    "Prodigy, schedule-free": _around(_prodigy_schedule_free, 1.0, "prodigyplus"),
}
# The methods of the head-to-head, those that practitioners use; the others belong to `--starts`.
COMPARED = (
    ROTATED, NO_RATE, COSINE, ADAM, "NAdam", SCHEDULE_FREE, SOAP, MUON, "Sophia",
    "Prodigy", "Prodigy, schedule-free",
)  # fmt: skip
