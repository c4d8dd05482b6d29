"""Golden runs of the optimizers: every way in which a loop lets them see curvature, and what loops do besides."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from golden_nets import Batch, OnceNet, Tokens, batch, convolutions, linear, loss_of, mlp, norms, wide
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import infhess

Shown = Iterator[tuple[Any, dict[str, Any]]]
SCALINGS, WAYS = ("kronecker", "diagonal"), ("watch", "closure", "observe")


Make = Callable[[nn.Module], Any]


def rate_free(model: nn.Module, scaling: str, **options: Any) -> infhess.RateFree:
    """RateFree of named parameters."""
    return infhess.RateFree(model.named_parameters(), scaling=scaling, **options)


def rate_free_groups(model: nn.Module, scaling: str) -> infhess.RateFree:
    """RateFree with two groups, and one added later."""
    first, *others, last = model.parameters()
    opt = infhess.RateFree([{"params": [first], "weight_decay": 0.1}, {"params": others, "lr": 0.5}], scaling=scaling)
    opt.add_param_group({"params": [last]})
    return opt


BASES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SGD-momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.01),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
}


def wrapped(model: nn.Module, base: str, **options: Any) -> infhess.Preconditioned:
    """Preconditioned around a base."""
    return infhess.Preconditioned(BASES[base](model.parameters()), **options)


@dataclass(frozen=True)
class Loop:
    """A training loop: the optimizer and the net, how curvature is seen ("" for not at all), and what else the loop does."""

    make: Make
    way: str = "watch"
    net: Callable[[], nn.Module] = mlp
    steps: int = 20
    dtype: torch.dtype = torch.float32
    clip: float = 0.0
    micro: int = 1  # micro-batches a step
    schedule: bool = False
    resume: bool = False  # from a checkpoint in the middle, by a new optimizer of a new net
    products: str = "exact"
    penalty: float = 0.0
    update: int = 0  # steps between two updates
    distributed: bool = False
    every: int = 1  # of late steps, one in so many is shown

    def __call__(self, rank: int = 0) -> Shown:
        """What is seen after each step; `rank` is the process."""
        model, opt = self._made()
        outer = DistributedDataParallel(model) if self.distributed else None
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.steps) if self.schedule else None
        for t in range(1, self.steps + 1):
            if self.resume and t == self.steps // 2:
                model, opt = self._resumed(model, opt)
            batches = [batch(10 * t + i + 10_000 * rank, self.dtype) for i in range(self.micro)]
            returned = self._step(model, outer or model, opt, batches, t)
            if schedule is not None:
                schedule.step()
            if t <= 20 or t % self.every == 0:
                yield t, seen(model, opt) | {"returned": returned}
        yield from ended(model, opt)

    def _made(self) -> tuple[nn.Module, Any]:
        model = self.net().to(self.dtype)
        return model, self.make(model)

    def _resumed(self, model: nn.Module, opt: Any) -> tuple[nn.Module, Any]:
        file = io.BytesIO()
        torch.save([model.state_dict(), opt.state_dict()], file)
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
        new, again = self._made()
        new.load_state_dict(weights)
        again.load_state_dict(state)
        return new, again

    def _step(self, model: nn.Module, outer: nn.Module, opt: Any, batches: list[Batch], t: int) -> Any:
        """One step; what it returned."""
        plain, loss, returned = loss_of(model, self.penalty), loss_of(outer, self.penalty), None
        if self.update and t % self.update == 1:
            stream = [batch(100_000 + 100 * t + i, self.dtype) for i in range(40)]
            returned = opt.update(plain, stream, generator=torch.Generator().manual_seed(t))

        def backward(data: Batch) -> Tensor:
            value = loss(data) / self.micro
            value.backward()
            return value.detach()

        def closure() -> Tensor:
            opt.zero_grad()
            total = sum(backward(data) for data in batches)
            self._clip(model)
            return total

        if self.way == "closure":
            return opt.step(closure)
        opt.zero_grad()
        for data in batches:
            with opt.watch() if self.way == "watch" else nullcontext():
                backward(data)
            if self.way == "observe":
                returned = opt.observe(plain, data, products=self.products, generator=torch.Generator().manual_seed(t))
        self._clip(model)
        opt.step()
        return returned

    def _clip(self, model: nn.Module) -> None:
        if self.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


def seen(model: nn.Module, opt: Any) -> dict[str, Any]:
    """All that a model and its optimizer show."""
    found = {"weights": model.state_dict(), "opt": opt.state_dict(), "report": opt.report}
    return found | ({"rate": opt.rate} if isinstance(opt, infhess.RateFree) else {"due": opt.due})


def ended(model: nn.Module, opt: Any) -> Shown:
    """What is left at the end: the averaged weights, P² applied."""
    if isinstance(opt, infhess.RateFree):
        with opt.averaged():
            yield "averaged", {"weights": model.state_dict()}
        yield "training", {"weights": model.state_dict()}
        opt.finish()
        yield "finished", {"weights": model.state_dict(), "opt": opt.state_dict()}
    else:
        size = sum(p.numel() for p in model.parameters())
        ones = torch.ones(size, dtype=next(model.parameters()).dtype)
        yield "P2", {"applied": opt.preconditioner @ ones}


def _rate_free() -> Iterator[tuple[str, Loop]]:
    for scaling in SCALINGS:
        made = Loop(partial(rate_free, scaling=scaling))
        for way in WAYS:
            loop = replace(made, way=way)
            yield f"{scaling}-{way}", replace(loop, steps=176, every=16)  # probes at steps 64 and 144, too
            yield f"{scaling}-{way}-clipped", replace(loop, clip=0.1)
            yield f"{scaling}-{way}-accumulated", replace(loop, micro=2)
            yield f"{scaling}-{way}-scheduled", replace(loop, schedule=True)
            yield f"{scaling}-{way}-resumed", replace(loop, resume=True)
            yield f"{scaling}-{way}-bf16", replace(loop, dtype=torch.bfloat16)
        yield f"{scaling}-differences", replace(made, way="observe", products="difference")
        yield f"{scaling}-differentiable-once", replace(made, way="closure", net=OnceNet)
        yield f"{scaling}-groups", replace(made, make=partial(rate_free_groups, scaling=scaling))
        yield f"{scaling}-double", replace(made, dtype=torch.float64)
        yield f"{scaling}-batch-norm", replace(made, net=norms)
        yield f"{scaling}-convolutions", replace(made, net=convolutions)
        yield f"{scaling}-tokens", replace(made, net=Tokens)
        yield f"{scaling}-wide", replace(made, net=wide)


def _distributed() -> Iterator[tuple[str, Loop]]:
    for scaling in SCALINGS:
        for way in WAYS:
            yield f"ddp-{scaling}-{way}", Loop(partial(rate_free, scaling=scaling), way, distributed=True)
    yield "ddp-Adam-watch", Loop(partial(wrapped, base="Adam"), distributed=True)


def _preconditioned() -> Iterator[tuple[str, str, Loop]]:
    for base in BASES:
        yield "nets", f"nets-{base}-watch", Loop(partial(wrapped, base=base))
        yield "nets", f"nets-{base}-update", Loop(partial(wrapped, base=base, rank=4), "", update=8)
    adam = Loop(partial(wrapped, base="Adam"), steps=176, every=16)
    yield "nets", "nets-Adam-closure", replace(adam, way="closure")
    yield (
        "nets",
        "nets-Adam-observe-layers",
        replace(adam, make=partial(wrapped, base="Adam", blocks="layer"), way="observe"),
    )
    yield "nets", "nets-Adam-resumed", replace(adam, steps=20, resume=True)
    yield (
        "nets",
        "nets-SGD-momentum-accumulated-clipped",
        Loop(partial(wrapped, base="SGD-momentum"), micro=2, clip=0.1),
    )
    yield "nets", "nets-SGD-update-keep", Loop(partial(wrapped, base="SGD", rank=4, step_length="keep"), "", update=8)
    yield "nets", "nets-SGD-layers-update", Loop(partial(wrapped, base="SGD", rank=4, blocks="layer"), "", update=8)
    for base in ("SGD", "Adam"):
        convex = Loop(partial(wrapped, base=base, rank=8), "observe", linear, 160, penalty=0.01, every=8)
        yield "convex", f"convex-{base}-observe", convex
        yield "convex", f"convex-{base}-update", replace(convex, way="", steps=20, update=8)
    yield (
        "convex",
        "convex-SGD-observe-double-accumulated",
        Loop(partial(wrapped, base="SGD"), "observe", linear, 40, torch.float64, micro=2, penalty=0.01),
    )
    yield (
        "convex",
        "convex-SGD-observe-resumed",
        Loop(partial(wrapped, base="SGD"), "observe", linear, 40, resume=True, penalty=0.01),
    )
    for blocks in ("whole", "layer"):
        paper = partial(wrapped, base="SGD", rank=2, method="paper", blocks=blocks)
        yield "paper", f"paper-{blocks}", Loop(paper, "", update=8)


# name: (rule, loop)
ALONE: dict[str, tuple[str, Loop]] = {
    **{f"rate-free-{name}": ("rate-free", loop) for name, loop in _rate_free()},
    **{name: (rule, loop) for rule, name, loop in _preconditioned()},
}
IN_TWO_PROCESSES: dict[str, tuple[str, Loop]] = {
    f"rate-free-{name}" if "Adam" not in name else f"nets-{name}": ("nets" if "Adam" in name else "rate-free", loop)
    for name, loop in _distributed()
}
