"""Nets without a learning rate: Adam's scaling, schedule-free averaging, and the rate from one probe in eighty steps."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from infhess._checks import count, finite_number
from infhess._precision import full_precision, full_precision_step
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, size_of
from infhess.curvature.flat import dense, length, real
from infhess.curvature.training_pass import TrainedHessian, TrainingPass
from infhess.optim.averaging.averaged import Averaging, Group, Loss
from infhess.optim.checkpoint import Scalars
from infhess.optim.rate.probe import Piece, Probe, Reading, wide
from infhess.optim.rate.prober import Prober
from infhess.optim.rate.rate_state import RateState
from infhess.optim.rate.settings import RATE_FREE
from infhess.optim.reports import Rate, RateReport
from infhess.optim.scalings.diagonal import ahead, directions

# Steps so many times shorter than their bound by |w| leave |w| much as it is for so many steps.
FAR, SIZE_HOLDS = 4.0, 16
PLAIN = (torch.float32, torch.float64)


class Live(NamedTuple):
    """A group, its parameters that have a gradient, and these gradients."""

    group: Group
    params: list[Tensor]
    grads: list[Tensor]


class RateFree(Averaging):
    """An optimizer for nets that has no learning rate to set.

    z moves by Adam's scaling of the gradient, x is the average of all z, and the model trains at y = (1 − β₁) z + β₁ x
    (Defazio et al. 2024). The learning rate is σ √(gᵀDg/hᵀDh), with D Adam's scaling and h = H D g from one Hessian-vector
    product in eighty steps, filtered over time.

    Args:
        params: as for any torch optimizer.
        weight_decay: decoupled, as in AdamW: part of y that goes for each unit of learning rate.
        betas: (β₁, β₂): how far y is towards the average, and the memory of squared gradients.
        lr: multiplies the learning rate that was found; a scheduler may change it.
        eps: Adam's ε, in units of the root mean square of the gradient.
        maximize: go up.

    Call `observe(loss, batch)` between backward and step, with each batch. Evaluate and save the model within `averaged()`, or
    after `finish()`: the averaged weights are the result. Weights changed by hand between steps are not taken over.

    Gradients are what `.grad` holds when the step is made. Clipped, accumulated over several batches (call `observe` with
    each of them), averaged over processes or multiplied by a `GradScaler`: the learning rate is the same.

    >>> import torch, infhess
    >>> model = torch.nn.Linear(3, 1)
    >>> opt = infhess.RateFree(model.parameters())
    >>> x = torch.randn(64, 3); y = x @ torch.tensor([[1.0], [-2.0], [3.0]])
    >>> loss = lambda batch: (model(batch[0]) - batch[1]).square().mean()
    >>> for _ in range(300):
    ...     opt.zero_grad(); loss((x, y)).backward()
    ...     report = opt.observe(loss, (x, y)); opt.step()
    >>> opt.finish()
    >>> bool(loss((x, y)) < 1e-2)
    True

    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        lr: float | Tensor = 1.0,
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        finite_number(weight_decay, "weight_decay", least=0.0)
        if finite_number(float(lr), "lr", least=0.0) != 1:
            warnings.warn(
                f"RateFree: lr={float(lr):g} multiplies the learning rate that curvature gives; pass lr=1, as skorch's "
                "NeuralNet(..., lr=1), unless you mean that",
                stacklevel=2,
            )
        finite_number(eps, "eps", least=0.0)
        for beta in betas:
            if not 0 <= finite_number(beta, "betas") < 1:
                raise ValueError(f"betas: expected two numbers from 0 to below 1, got {betas}")
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps, "maximize": maximize}
        self._prober = Prober()
        self._reset_size()
        self.report: RateReport | None = None  # of the last curvature probe
        super().__init__(params, defaults)

    @property
    def _rate_state(self) -> RateState:
        return self._prober.state

    def _reset_size(self) -> None:
        """|w| is to be measured at the next step."""
        self._size, self._size_age = 0.0, 0

    # ---- the learning rate

    @full_precision
    def observe(
        self,
        loss: Loss,
        batch: Batch,
        *,
        points: int | None = None,
        products: str = "exact",
        generator: torch.Generator | None = None,
    ) -> RateReport | None:
        """Call it between backward and step, with each batch; now and then it probes curvature, by one product.

        Args:
            loss: batch ↦ scalar, the mean loss of a batch; it closes over the model.
            batch: the one that the gradient is of. With gradient accumulation, call it for each micro-batch; or for the last
                one alone, with `points`.
            points: data points that this call stands for, where the batch does not tell.
            products: "exact", or "difference" for losses that cannot be differentiated twice.
            generator: for dropout masks.

        Returns a report when it probed curvature.

        """
        self._outside("observe")
        started = time.perf_counter()
        if not self._prober.expects(lambda: size_of(batch) if points is None else count(points, "points")):
            self._keep(loss, batch)
            return None
        try:
            masks = generator or self._masks()
            source = Hessian(loss, self._params(), [batch], products=products, points=points, generator=masks)
            self._prober.add(source, batch)
            before, probes = self._rate_state.allowed, self._prober.complete
            notes = self._prober.begin(self._read) if probes else ()
        except BaseException:
            self._prober.reset()
            raise
        self._keep(loss, batch)
        return self._report(self._prober.pieces, notes, before, started) if probes else None

    def _masks(self) -> torch.Generator:
        """For dropout, others at each probe and for each micro-batch."""
        return torch.Generator().manual_seed(int(self._rate_state.steps) + (self._prober.micro_batches - 1) * 2**32)

    @contextmanager
    def watch(self, *, points: int | None = None) -> Iterator[None]:
        """Around the forward and backward pass of training, in a loop without a closure; then `step()`.

        On the steps at which curvature is probed, one in eighty, the gradient's graph is kept and the Hessian-vector product
        is taken in `step`. Else nothing happens. With gradient accumulation, watch each micro-batch.

        Args:
            points: the batch size. By default it is the leading dimension of what the model's parameters are applied to.

        """
        self._outside("watch")
        known = None if points is None else count(points, "points")
        if not self._rate_state.due:
            yield
            self._prober.expects(lambda: 0)
            return
        with TrainingPass(self._params()) as done:
            yield
        self._take(done, known or done.points)

    def _take(self, done: TrainingPass, points: int) -> None:
        """A training pass as one more micro-batch of the coming step."""
        if self._prober.expects(lambda: points):
            self._prober.add_graph(TrainedHessian(done, points), done)

    def _report(self, pieces: list[Piece], notes: tuple[str, ...], before: float, started: float) -> RateReport:
        state = self._rate_state
        self.report = RateReport(
            self.rate,
            state.allowed,
            sum(piece.source.products for piece in pieces),
            sum(piece.source.product_points for piece in pieces),
            time.perf_counter() - started,
            (*notes, *state.diagnostics(before)),
        )
        return self.report

    def _read(self, probe: Probe) -> Reading:
        """A probe along Dg, with what `.grad` holds and D as the coming step will have it."""
        state = self._rate_state
        for p in probe.params:
            if p not in self.state:  # frozen until now
                self.state[p] = self._fresh(p)
        g = self._gradient(probe)
        scale = length([g]) / max(sum(x.numel() for x in g), 1) ** 0.5
        state.gradient = scale if 0 < scale < math.inf else state.gradient
        groups = {p: group for group in self.param_groups for p in group["params"]}

        def scaled(i: int, x: Tensor) -> Tensor:
            group = groups[probe.params[i]]
            return ahead(self.state[probe.params[i]], group["betas"][1], self._eps(group), g[i], x)

        reading = probe.read(g, scaled)
        if probe.norms is not None:
            self._norms = probe.norms
        return reading

    def _gradient(self, probe: Probe) -> list[Tensor]:
        """What `.grad` holds of each probed parameter; the batch's own gradient before there is any."""
        if all(p.grad is None for p in probe.params):
            return probe.own()
        return [
            torch.zeros_like(self.state[p]["z"]) if p.grad is None else wide(real(dense(p.grad))) for p in probe.params
        ]

    @property
    def rate(self) -> Rate:
        """The learning rate in use, with its uncertainty; NaN as long as no curvature was seen."""
        return self._rate_state.uncertain

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A batch that was observed and never stepped with, for a gradient that is not finite, is skipped."""
        grads = [real(p.grad) for p in self._params() if p.grad is not None and not p.grad.is_sparse]
        if self._prober.micro_batches and grads and not math.isfinite(length([grads])):
            self._prober.reset()
            self._rate_state.skip(finite=False)
        super().zero_grad(set_to_none)

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the closure runs once, before it, and its loss is returned."""
        self._outside("step")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = self._run(closure)
        with torch.no_grad():
            self._step()
        return loss

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Training's own forward and backward pass, watched; unless the closure observes by itself."""
        if self._prober.micro_batches:
            return closure()
        with TrainingPass(self._params()) if self._rate_state.due else nullcontext() as done:
            loss = closure()
        if not self._prober.micro_batches:
            self._take(done, done.points) if done is not None else self._prober.expects(lambda: 0)
        return loss

    def _step(self) -> None:
        live = [found for group in self.param_groups if (found := _live(group)).params]
        if not live:
            return
        self._check_observed()
        gradient = length([part.grads for part in live])
        before, started, pieces = self._rate_state.allowed, time.perf_counter(), self._prober.pieces
        notes = self._prober.finish(gradient, self._read)
        state = self._rate_state
        if notes is not None:
            self._report(pieces, notes, before, started)
        if math.isnan(state.rate) or not math.isfinite(gradient):
            state.skip(math.isfinite(gradient))
            return
        known = [self._owns(part.params) for part in live]
        moves = [
            directions(owns, ages, part.group["betas"][1], self._eps(part.group), part.grads)
            for part, (owns, ages) in zip(live, known)
        ]
        scale = max(float(part.group["lr"]) for part in live)
        move = math.hypot(*(r * length([d]) for d, r in moves))
        step = state.advance(move, self._size_of(live, scale), scale)
        state.average(scale)
        for part, (owns, _), (d, r) in zip(live, known, moves):
            self._move(part, owns, d, step * float(part.group["lr"]), r)

    def _owns(self, params: list[Tensor]) -> tuple[list[dict[str, Any]], list[float]]:
        """The state of each parameter and its steps so far; the average of one that is new begins where it is now."""
        ages = [float(self.state[p].get("step", 0.0)) for p in params]
        for p, age in zip(params, ages):
            if not age:
                self.state[p] = self._fresh(p)
        return [self.state[p] for p in params], ages

    def _size_of(self, live: list[Live], scale: float) -> float:
        """|w|, measured anew where the bound on steps by it could be within reach, and every so often."""
        state = self._rate_state
        self._size_age += 1
        far = FAR * state.rate * scale * state.length <= RATE_FREE.longest * self._size
        if not far or self._size_age >= SIZE_HOLDS:
            self._size, self._size_age = length([[real(p.detach()) for p in part.params] for part in live]), 0
        return self._size

    def _check_observed(self) -> None:
        state, every = self._rate_state, 2 * RATE_FREE.every
        if not state.observed_at:
            raise RuntimeError(
                "RateFree: no training pass was seen, so there is no rate; call opt.step(closure), or put forward and backward "
                "into `with opt.watch():`, or call opt.observe(loss, batch) between backward and step, with each batch"
            )
        missed = state.steps - state.observed_at
        if missed >= every and missed % every == 0:
            warnings.warn(
                f"RateFree: no training pass was seen for {missed:.0f} steps, and the rate follows curvature no more; call "
                "opt.step(closure), opt.watch() or opt.observe(loss, batch) with each batch",
                stacklevel=3,
            )

    def _eps(self, group: Group) -> float:
        return float(group["eps"]) * self._rate_state.gradient

    def _move(self, part: Live, owns: list[dict[str, Any]], d: list[Tensor], rate: float, r: float) -> None:
        """z −= rate·(r d + decay·y), x += c (z − x), y = (1 − β₁) z + β₁ x."""
        group, newest = part.group, self._rate_state.newest
        y, z, x = [real(p) for p in part.params], [own["z"] for own in owns], [own["averaged"] for own in owns]
        if group["weight_decay"]:
            torch._foreach_add_(z, [w.to(v.dtype) for w, v in zip(y, z)], alpha=-rate * group["weight_decay"])
        torch._foreach_add_(z, d, alpha=-rate * r)
        begun = [float(own["begun"]) for own in owns]
        if min(begun) == max(begun):
            torch._foreach_lerp_(x, z, newest(begun[0]))
        else:
            for mean, new, before in zip(x, z, begun):
                mean.lerp_(new, newest(before))
        weight = 1 - group["betas"][0]
        for w, mean, new in zip(y, x, z):
            if w.dtype == mean.dtype:
                torch.lerp(mean, new, weight, out=w)
            else:
                w.copy_(torch.lerp(mean, new, weight))

    # ---- checkpoints

    @property
    def _scalars(self) -> Scalars:
        return self._rate_state

    @property
    def _saved_averaged(self) -> bool:
        return bool(self._rate_state.averaged)

    @_saved_averaged.setter
    def _saved_averaged(self, value: bool) -> None:
        self._rate_state.averaged = float(value)

    @property
    def _average_weight(self) -> float:
        return self._rate_state.weight

    def _take_scalars(self, numbers: Tensor, *, check: bool = False) -> None:
        found = RateState.of(numbers)
        if not check:
            self._prober = Prober(found)
            self._reset_size()

    def __getstate__(self) -> dict[str, Any]:
        state = replace(self._rate_state, averaged=float(self._inside or self._saved_averaged))
        return {**super().__getstate__(), "_prober": Prober(state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset_size()
        super().__setstate__(state)


def _live(group: Group) -> Live:
    """What of a group has a gradient: real, in single precision at the least, downwards."""
    params = [p for p in group["params"] if p.grad is not None]
    grads = [p.grad if p.grad.dtype in PLAIN and p.grad.layout is torch.strided else _plain(p.grad) for p in params]
    return Live(group, params, list(torch._foreach_neg(grads)) if group["maximize"] and grads else grads)


def _plain(grad: Tensor) -> Tensor:
    if grad.is_sparse:
        raise RuntimeError("RateFree does not take sparse gradients; use sparse=False in the embedding")
    return wide(real(grad))
