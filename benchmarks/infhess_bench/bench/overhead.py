"""What a step costs besides the gradient: microseconds of `observe` without a probe, and of `step`, on one thread."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import infhess
from infhess_bench.harness import Job, Row, Target, at_most, markdown, on_threads, target_cells
from infhess_bench.harness.methods import imported
from infhess_bench.problems import Data, paper_net, seeded
from infhess_bench.problems.shuffled import Loss, objective

EXPERIMENT, UNIT = "bench-overhead", "Adam, foreach"
DIAGONAL, ROTATED, SOAP = "infhess.RateFree", "infhess.RateFree, kronecker", "SOAP"
GRADIENT, NET = "gradient", "paper's net, batch 32"
# Steps before the first measurement, rounds in which all optimizers take turns, and steps of each in a round.
WARM, ROUNDS, STEPS = 130, 7, 15
TURNS = 4  # gradients that take turns
OTHERS = {"schedule-free AdamW": "schedulefree.AdamWScheduleFree", SOAP: "pytorch_optimizer.SOAP"}
Optimizer = Any


@dataclass(frozen=True)
class Setting:
    """A module with gradients, the loss of its outputs, and a batch."""

    model: nn.Module
    loss_of: Loss
    batch: Data


class Tensors(nn.Module):
    """A module of bare tensors."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__()
        self.tensors = nn.ParameterList([nn.Parameter(torch.randn(size)) for _ in range(number)])

    def forward(self, x: Tensor) -> Tensor:
        """A sum of squares."""
        return torch.stack([(x[0, 0] * w).square().mean() for w in self.tensors]).mean()


def settings(width: float) -> dict[str, Callable[[], Setting]]:
    """Settings by name; a width below 1 is for tests."""
    many, large = max(4, int(300 * width)), int(2_000_000 * width)
    ones = torch.ones(8, 1), torch.ones(8, 1)
    return {
        "linear, 253 inputs, batch 256": lambda: Setting(
            nn.Linear(253, 1), functional.mse_loss, (torch.randn(256, 253), torch.randn(256, 1))
        ),
        f"{many} small tensors": lambda: Setting(Tensors(many, 16), _alone, ones),
        NET: lambda: Setting(
            paper_net(width), functional.cross_entropy, (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))
        ),
        "4 tensors of 2 million": lambda: Setting(Tensors(4, large), _alone, ones),
    }


def _alone(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs


def methods() -> dict[str, Callable[[Any], Optimizer]]:
    """Optimizers by name; packages that are not installed are left out."""
    others = {name: path for name, path in OTHERS.items() if find_spec(path.split(".")[0])}
    return {
        "SGD": lambda p: torch.optim.SGD(p, lr=1e-5),
        UNIT: lambda p: torch.optim.Adam(p, lr=1e-5, foreach=True),
        "Adam, fused": lambda p: torch.optim.Adam(p, lr=1e-5, fused=True),
        "infhess.Preconditioned(SGD)": lambda p: infhess.Preconditioned(torch.optim.SGD(p, lr=1e-5)),
        DIAGONAL: lambda p: infhess.RateFree(p, scaling="diagonal"),
        ROTATED: lambda p: infhess.RateFree(p, scaling="kronecker"),
        **{name: partial(imported, path=path, lr=1e-5) for name, path in others.items()},
    }


class Runner:
    """One optimizer on its own copy; a few gradients take turns, and only `observe` and `step` are timed."""

    def __init__(self, setting: Setting, make: Callable[[Any], Optimizer]) -> None:
        self.setting, self.model = setting, copy.deepcopy(setting.model)
        self.optimizer = make(list(self.model.parameters()))
        self.loss = objective(setting.loss_of, self.model, 0.0)
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()
        self.backward()
        self.params, self.turn = [p for p in self.model.parameters() if p.grad is not None], 0
        self.gradients = [[_noisy(p) for p in self.params] for _ in range(TURNS)]

    def backward(self) -> float:
        """Seconds of a forward and a backward pass."""
        start = time.thread_time()
        self.model.zero_grad()
        torch.autograd.backward(self.loss(self.setting.batch))
        return time.thread_time() - start

    def state(self) -> int:
        """The size of its state, in numbers; tensors that parameters share count once."""
        found = {id(t): t.numel() for t in _tensors(list(self.optimizer.state.values()))}
        return sum(found.values())

    def observe(self) -> None:
        """Call `observe`, if it has one."""
        if hasattr(self.optimizer, "observe"):
            self.optimizer.observe(self.loss, self.setting.batch)

    def seconds(self) -> tuple[float, float]:
        """Seconds of `observe` and of `step` in CPU time of this thread: other processes do not count."""
        self.turn += 1
        for p, g in zip(self.params, self.gradients[self.turn % TURNS]):
            p.grad = g
        start = time.thread_time()
        self.observe()
        between = time.thread_time()
        self.optimizer.step()
        return between - start, time.thread_time() - between


def _noisy(p: nn.Parameter) -> Tensor:
    """The gradient with as much noise: squares of a constant one underflow in its own eigenbasis, which is slow."""
    assert p.grad is not None
    return p.grad + p.grad.square().mean().sqrt() * torch.randn_like(p)


def jobs(seed: int, *, width: float = 1.0) -> Iterator[Job]:
    """All optimizers on each setting."""
    for name in settings(width):
        yield Job(Row(EXPERIMENT, name, UNIT, seed), overhead_rows, (width,))


def overhead_rows(template: Row, width: float) -> list[Row]:
    """Seconds of `observe` and `step`, and their sum in units of Adam's step in the same round."""
    with on_threads(1), seeded(template.seed):
        setting = settings(width)[template.problem]()
        runners = {name: Runner(setting, make) for name, make in methods().items()}
        for runner in runners.values():
            for _ in range(WARM):
                runner.seconds()
        rounds = [
            {name: [runner.seconds() for _ in range(STEPS)] for name, runner in runners.items()} for _ in range(ROUNDS)
        ]
        gradient = median(runners[UNIT].backward() for _ in range(STEPS))
        passes = {name: memory_passes(runner) for name, runner in runners.items()}
    rows = [replace(template, method=f"{GRADIENT}:", seconds=gradient)]
    size = sum(p.numel() for p in setting.model.parameters())
    whole = {name: mean(sum(both) for found in rounds for both in found[name]) for name in runners}
    for name, runner in runners.items():
        typical = [{n: _typical(found[n]) for n in (name, UNIT)} for found in rounds]
        ratio = median(sum(found[name]) / sum(found[UNIT]) for found in typical)
        observe, step = (median(found[name][i] for found in typical) for i in (0, 1))
        extra = whole[name] - whole[UNIT]
        rows += [
            replace(template, method=f"{name}: extra", seconds=extra, metric=extra / (gradient + whole[UNIT])),
            replace(template, method=f"{name}: state", metric=runner.state() / size),
            replace(template, method=name, seconds=observe + step, metric=ratio),
            replace(template, method=f"{name}: observe", seconds=observe),
            replace(template, method=f"{name}: memory passes", metric=passes[name]),
        ]
    return rows


def _typical(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The median step of a few: a probe or refresh among them does not count here, but does in `extra`."""
    return median(o for o, _ in found), median(s for _, s in found)


class _Passes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the numbers that operations read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            read = {id(t): t.numel() for t in _tensors((args, kwargs))}
            self.numbers += sum(read.values()) + sum(t.numel() for t in _written(func, args, kwargs or {}, out))
        return out


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _written(func: Any, args: Any, kwargs: Any, out: Any) -> list[Tensor]:
    """What an operation writes: its arguments if it works in place, else its results."""
    in_place = [
        kwargs.get(argument.name, args[i] if i < len(args) else None)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return _tensors(in_place or out)


def memory_passes(runner: Runner) -> float:
    """Numbers that one `step` reads and writes, per parameter, if nothing is due."""
    size, found = sum(p.numel() for p in runner.model.parameters()), []
    for _ in range(3):
        runner.observe()
        with _Passes() as passes:
            runner.optimizer.step()
        found.append(passes.numbers / size)
    return float(median(found))


def targets(rows: Sequence[Row]) -> list[Target]:
    """`observe` and `step` together in units of Adam's step, and memory passes compared with schedule-free AdamW's."""
    known = {(row.problem, row.method): row.metric for row in rows}
    found = []
    for problem in dict.fromkeys(row.problem for row in rows):
        bounds = {"infhess.Preconditioned(SGD)": 2.0, DIAGONAL: 1.5, ROTATED: 1.5}
        found += [at_most(f"{problem}: {name} / {UNIT}", known[problem, name], most) for name, most in bounds.items()]
        theirs = known.get((problem, "schedule-free AdamW: memory passes"))
        if theirs:
            ours = known[problem, f"{DIAGONAL}: memory passes"]
            found.append(at_most(f"{problem}: memory passes, RateFree / schedule-free AdamW", ours / theirs, 1.3))
        found += _rotated_targets(problem, known)
    return found


def _rotated_targets(problem: str, known: dict[tuple[str, str], float]) -> list[Target]:
    """The rotated scaling: seconds beyond Adam's as a share of a training step, and compared with SOAP's; size of its state."""
    extra, found = known[problem, f"{ROTATED}: extra"], []
    if problem == NET:
        found.append(at_most(f"{problem}: {ROTATED} − {UNIT}, as a share of a training step", extra, 0.15))
    if (problem, SOAP) in known:
        theirs = known[problem, f"{SOAP}: extra"]
        found.append(at_most(f"{problem}: {ROTATED} − {UNIT}, beside SOAP's", extra / theirs, 0.5))
        more = known[problem, f"{ROTATED}: state"] - known[problem, f"{SOAP}: state"]
        found.append(
            at_most(f"{problem}: copies of the parameters beyond SOAP's state, {ROTATED}", round(more, 3), 1.0)
        )
    return found


def summary(rows: Sequence[Row]) -> str:
    """The tables in Markdown: microseconds and ratios, then targets."""
    problems = list(dict.fromkeys(row.problem for row in rows))
    known = {(row.problem, row.method): row for row in rows}
    names = list(dict.fromkeys(row.method for row in rows if ":" not in row.method))
    table = [["µs (in units of Adam's foreach step)", *problems]]
    for name in names:
        cells = [known[problem, name] for problem in problems]
        table.append([name, *(f"{1e6 * row.seconds:.0f} ({row.metric:.2f})" for row in cells)])
    return f"{markdown(table)}\n\n{markdown(target_cells(targets(rows)))}"
