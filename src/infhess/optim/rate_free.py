"""Nets without a learning rate: Adam's scaling, schedule-free averaging, and the rate from one probe in eighty steps."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from infhess._checks import count, finite_number
from infhess._precision import full_precision, full_precision_step
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, size_of
from infhess.curvature.flat import dense, length, real
from infhess.curvature.local import DoubleBackwardError
from infhess.optim.averaging.averaged import Averaging, Group, Loss
from infhess.optim.checkpoint import Scalars
from infhess.optim.distributed import all_reduce_mean, any_process, world_size
from infhess.optim.rate.probe import Probe, Reading, wide
from infhess.optim.rate.rate_state import RateState
from infhess.optim.rate.settings import RATE_FREE
from infhess.optim.reports import Rate, RateReport
from infhess.optim.scalings.diagonal import ahead, directions

# A gradient whose length has changed by more than this since it was probed was clipped or added to: the probe is read anew.
CHANGED = 1e-4
BLIND = Reading(math.nan, math.nan, math.nan)


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
        finite_number(float(lr), "lr", least=0.0)
        finite_number(eps, "eps", least=0.0)
        for beta in betas:
            if not 0 <= finite_number(beta, "betas") < 1:
                raise ValueError(f"betas: expected two numbers from 0 to below 1, got {betas}")
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": tuple(betas), "eps": eps, "maximize": maximize}
        self._rate_state = RateState()
        self._reset_probe()
        super().__init__(params, defaults)

    def _reset_probe(self) -> None:
        """Nothing observed since the last step."""
        self._probe: Probe | None = None
        self._micro_batches = 0

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
        state, started = self._rate_state, time.perf_counter()
        state.observed_at = state.steps + 1
        self._micro_batches += 1
        due = state.due
        if due:
            state.observed += size_of(batch) if points is None else count(points, "points")
        # Micro-batches come in equal numbers: the probe is of the last one, when the gradient is complete.
        if not due or self._micro_batches != state.micro_batches:
            self._keep(loss, batch)
            return None
        masks = generator or torch.Generator().manual_seed(int(state.steps))  # others at each probe
        source = Hessian(loss, self._params(), [batch], products=products, points=points, generator=masks)
        before = state.allowed
        notes = self._probe_curvature(source, batch)
        self._keep(loss, batch)
        notes, seconds = (*notes, *state.diagnostics(before)), time.perf_counter() - started
        return RateReport(self.rate, state.allowed, source.products, source.product_points, seconds, notes)

    def _probe_curvature(self, source: Hessian, batch: Batch) -> tuple[str, ...]:
        """One probe. One that fails changes nothing; the first has to tell something."""
        state, failure, device = self._rate_state, None, self._params()[0].device
        self._before = copy(state)
        try:
            self._probe = Probe(source, batch)
            self._norms = self._probe.local.watch.norms
            for p in self._probe.params:
                if p not in self.state:  # frozen until now
                    self.state[p] = self._fresh(p)
        except ValueError as error:
            failure = error
        reading = BLIND
        if not any_process(failure is not None, device):
            try:
                reading = self._read()
            except DoubleBackwardError as error:
                failure = error
        state.probed()
        if failure is not None and (isinstance(failure, DoubleBackwardError) or math.isnan(state.log_rate)):
            self._reset_probe()
            raise failure
        if failure is None and math.isnan(reading.log_ratio):
            failure = ValueError("there was no gradient, or no curvature along it, on this batch")
        return () if failure is None else (f"a curvature probe was skipped: {failure}",)

    @torch.no_grad()
    def _read(self) -> Reading:
        """Read the probe along the gradient as it stands, and follow what it says."""
        probe, state = self._probe, self._rate_state
        assert probe is not None
        state.count_points(all_reduce_mean([state.observed], probe.params[0].device)[0] * world_size())
        g = self._gradient(probe)
        scale = length([g]) / max(sum(x.numel() for x in g), 1) ** 0.5
        state.gradient = scale if 0 < scale < math.inf else state.gradient
        accumulated = self._micro_batches > 1 or not probe.source.split
        groups = {p: group for group in self.param_groups for p in group["params"]}

        def scaled(i: int, x: Tensor) -> Tensor:
            group = groups[probe.params[i]]
            return ahead(self.state[probe.params[i]], group["betas"][1], self._eps(group), g[i], x)

        reading = probe.read(g, scaled, accumulated=accumulated)
        self._probed_length = reading.gradient
        state.begin(length([[real(w.detach()) for w in probe.params]]), reading.direction)
        if not math.isnan(reading.log_ratio):
            state.see(reading.log_ratio)
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

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; the closure runs once, before it, and its loss is returned."""
        self._outside("step")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._step()
        return loss

    def _step(self) -> None:
        live = [(g, [p for p in g["params"] if p.grad is not None]) for g in self.param_groups]
        live = [(group, params) for group, params in live if params]
        if not live:
            return
        self._check_observed()
        grads = [_gradients(group, params) for group, params in live]
        gradient = length(grads)
        self._finish_probe(gradient)
        state = self._rate_state
        if math.isnan(state.rate) or not math.isfinite(gradient):
            state.skip()
            return
        moves = [self._directions(*gp, g) for gp, g in zip(live, grads)]
        scale = max(float(group["lr"]) for group, _ in live)
        size = length([[real(p.detach()) for p in params] for _, params in live])
        step = state.advance(length(moves), size, scale)
        state.average(scale)
        for (group, params), move in zip(live, moves):
            self._move(group, params, move, step)
        self._publish()

    def _finish_probe(self, gradient: float) -> None:
        """Read the probe anew where the gradient is not the one that was probed: clipped, unscaled or added to since."""
        changed = self._probe is not None and not abs(gradient - self._probed_length) <= CHANGED * gradient
        if changed and math.isfinite(gradient):
            state = self._before
            state.observed, state.observed_at = self._rate_state.observed, self._rate_state.observed_at
            self._rate_state = state
            self._read()
            state.probed()
        if self._micro_batches:
            self._rate_state.micro_batches = float(self._micro_batches)
        self._reset_probe()

    def _check_observed(self) -> None:
        state, every = self._rate_state, 2 * RATE_FREE.every
        if not state.observed_at:
            raise RuntimeError(
                "RateFree: observe was not called, so there is no rate; call opt.observe(loss, batch) between backward and "
                "step, with each batch"
            )
        missed = state.steps - state.observed_at
        if missed >= every and missed % every == 0:
            warnings.warn(
                f"RateFree: observe was not called for {missed:.0f} steps, and the rate follows curvature no more; "
                "call opt.observe(loss, batch) between backward and step, with each batch",
                stacklevel=3,
            )

    def _directions(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
        """Dg; the average of a weight that is new begins where it is now."""
        for p in params:
            if not self.state[p].get("step"):
                self.state[p] = self._fresh(p)
        return directions([self.state[p] for p in params], group["betas"][1], self._eps(group), grads)

    def _eps(self, group: Group) -> float:
        return float(group["eps"]) * self._rate_state.gradient

    def _move(self, group: Group, params: list[Tensor], directions: list[Tensor], step: float) -> None:
        """z −= step·(Dg + decay·y), x += c (z − x), y = (1 − β₁) z + β₁ x."""
        rate, decay = step * float(group["lr"]), group["weight_decay"]
        z, x = ([self.state[p][name] for p in params] for name in ("z", "averaged"))
        y = [real(p) for p in params]
        if decay:
            torch._foreach_add_(directions, [w.to(d.dtype) for w, d in zip(y, directions)], alpha=decay)
        torch._foreach_add_(z, directions, alpha=-rate)
        begun = [float(self.state[p]["begun"]) for p in params]
        if len(set(begun)) == 1:
            torch._foreach_lerp_(x, z, self._rate_state.newest(begun[0]))
        else:
            for mean, newest, before in zip(x, z, begun):
                mean.lerp_(newest, self._rate_state.newest(before))
        if all(w.dtype == mean.dtype for w, mean in zip(y, x)):
            torch._foreach_copy_(y, x)
            torch._foreach_lerp_(y, z, 1 - group["betas"][0])
        else:
            torch._foreach_copy_(y, torch._foreach_lerp(x, z, 1 - group["betas"][0]))

    # ---- checkpoints

    @property
    def _scalars(self) -> Scalars:
        return self._rate_state

    @property
    def _average_weight(self) -> float:
        return self._rate_state.weight

    def _take_scalars(self, numbers: Tensor, *, check: bool = False) -> None:
        found = RateState.of(numbers)
        if not check:
            self._rate_state = found
            self._reset_probe()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rate_state": self._rate_state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset_probe()
        super().__setstate__(state)


def _gradients(group: Group, params: Sequence[Tensor]) -> list[Tensor]:
    """Real, in single precision at the least, downwards."""
    found = []
    for p in params:
        assert p.grad is not None
        if p.grad.is_sparse:
            raise RuntimeError("RateFree does not take sparse gradients; use sparse=False in the embedding")
        found.append(wide(real(p.grad)))
    return list(torch._foreach_neg(found)) if group["maximize"] else found
