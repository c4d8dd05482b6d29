"""When curvature is probed, on which micro-batch, and along the gradient that the step finally uses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from infhess._distributed import all_reduce_mean, world_size
from infhess.curvature.batch_curvature import DoubleBackwardError
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.flat import real
from infhess.curvature.pooled import AbsentError
from infhess.curvature.training_pass import GRAPHS, TrainedHessian, TrainingPass
from infhess.optim import sharded
from infhess.optim.rate.difference_probe import DifferenceProbe
from infhess.optim.rate.live import gradients
from infhess.optim.rate.probe import MicroBatch, Probe, Reading
from infhess.optim.rate.rate_state import RateState
from infhess.optim.rate.settings import RateFreeRule
from infhess.optim.reports import Rate, RateReport
from infhess.optim.scalings.scaler import Scaler

# If the length of the gradient has changed by more than this since the probe, it was clipped or added to: read again.
CHANGED = 1e-4
# Fields that keep their newest values when a probe is read again: reports and `observe` have changed them since.
KEPT = ("observed", "observed_at", "shortened", "skipped", "bounded", "waiting")
NOTHING = "there was no gradient, or no curvature along it, on this batch"
OVERFLOW = (
    "the gradient is finite, but its product with the Hessian holds NaN or infinity; in float16 use bfloat16 instead, or a "
    "GradScaler with a smaller scale; otherwise look for a point where the loss is not smooth"
)
AnyProbe = Probe | DifferenceProbe
Read = Callable[[AnyProbe], Reading]  # probe along the optimizer's present gradients and scaling


class NothingToReadError(ValueError):
    """There was no gradient, or no curvature along it."""


class Prober:
    """The state of the learning rate, and the micro-batches of the coming step until that step is made."""

    def __init__(self, rule: RateFreeRule, state: RateState | None = None) -> None:
        self.state = state or RateState()
        self.state.rule = rule
        self.cost = (0, 0)  # of the last probe: products, and the data points in them
        self.reset()

    def reset(self) -> None:
        """Forget what was observed since the last step."""
        self.pieces: list[MicroBatch] = []
        self.failure: Exception | None = None  # of this process, until all processes raise it
        self.again: DifferenceProbe | None = None  # a second run of the closure, instead of the pieces
        self.probe: AnyProbe | None = None
        self.micro_batches, self.tokens, self.state.observed = 0, 0, 0.0
        self._before: RateState | None = None  # the state before this step's probe
        self._probed = self._direction = math.nan  # |g| and |Dg| at that probe

    def expects(self, sizes: Callable[..., tuple[int, int]], *given: Any) -> bool:
        """Count a micro-batch, with its numbers of points and of tokens; return whether the coming step probes curvature."""
        due = self.state.due
        points, tokens = (self.attempt(sizes, *given) or (0, 0)) if due else (0, 0)
        self.state.observed_at = self.state.steps + 1
        self.state.observed += points
        self.tokens += tokens
        self.micro_batches += 1
        return due

    def attempt(self, prepare: Callable[..., Any], *given: Any) -> Any:
        """Prepare a probe in this process; with several processes, an error is kept until all of them raise it."""
        try:
            return prepare(*given)
        except Exception as error:
            if world_size() == 1:
                raise
            self.failure = self.failure or error
            return None

    def add(self, batch: Batch, make: Callable[..., Hessian], generator: torch.Generator | None) -> None:
        """Add a micro-batch to probe; `make` gets a generator for dropout masks. Its graph is kept if it is the only one."""
        # Different masks at each probe and for each micro-batch.
        own = torch.Generator().manual_seed(int(self.state.steps) + (self.micro_batches - 1) * 2**32)
        source = make(generator=generator or own)
        self.pieces.append(MicroBatch(source, batch, keep=self.state.micro_batches == 1 and not self.pieces))

    def take(self, done: TrainingPass | None, points: int | None = None) -> None:
        """Add a training pass as a micro-batch of the coming step, with its graph if curvature is probed there."""
        if done is not None and not done.seen:
            return
        seen = points or (done.points if done else 0)
        self.expects(lambda: (seen, seen if points or done is None else done.tokens))
        if done is not None and len(self.pieces) < GRAPHS:  # at most two graphs per step
            self.pieces.append(MicroBatch(TrainedHessian(done, seen), done))

    def begin(self, read: Read, params: Sequence[Tensor]) -> RateReport:
        """Probe once. A failing probe changes nothing, in all processes; but if the first one fails, it raises."""
        before, started = copy(self.state), time.perf_counter()
        self._before = before
        failure: ValueError | None = None
        try:
            self._follow(read, params)
        except ValueError as error:
            failure = error
        except BaseException:
            self.state = before
            self.reset()
            raise
        if not isinstance(failure, AbsentError):  # otherwise try again at the next step
            self.state.probed()
        if failure is not None and not isinstance(failure, NothingToReadError):
            self.probe, self.pieces, self.again, self.failure = None, [], None, None
            first = math.isnan(self.state.log_rate) and not isinstance(failure, AbsentError)
            if first or isinstance(failure, DoubleBackwardError):
                self.reset()
                raise failure
        skipped = () if failure is None else (f"a curvature probe was skipped: {failure}",)
        notes = (*skipped, *self.state.diagnostics(before.allowed))
        return RateReport(self.state.uncertain, self.state.allowed, *self.cost, time.perf_counter() - started, notes)

    @torch.no_grad()
    def _follow(self, read: Read, params: Sequence[Tensor]) -> None:
        """Read the probe along the present gradient, and update the learning rate with it."""
        state = self.state
        live, failure = [p for p in params if p.requires_grad], self.failure
        probe = self.probe = self.again or Probe(self.pieces, self.micro_batches, params=live, failure=failure)
        try:
            reading = read(probe)
        finally:
            self.cost = probe.cost
        seen = all_reduce_mean([state.observed, float(self.tokens)], probe.params[0].device)
        state.count_points(*(world_size() * number for number in seen))
        self._probed, self._direction = reading.gradient, reading.direction
        state.begin(sharded.size_of(probe.params), reading.direction)
        state.length_read = max(reading.direction, state.length if state.length > 0 else 0.0)
        if math.isnan(reading.log_ratio):
            raise NothingToReadError(OVERFLOW if reading.overflow else NOTHING)
        state.see(reading.log_ratio, reading.gradient / math.sqrt(max(numbers_of(probe.params), 1)))

    def finish(self, gradient: float, read: Read, params: Sequence[Tensor]) -> RateReport | None:
        """The step is made with a gradient of this length: probe again if it was clipped, unscaled or added to since.

        Returns a report if this is the first probe of the step: a training pass is complete only now.
        """
        report, micro_batches = None, float(self.micro_batches or self.state.micro_batches)
        try:
            if (self.pieces or self.again or self.failure) and math.isfinite(gradient):
                if self._before is None:
                    report = self.begin(read, params)
                elif self.probe is not None and not abs(gradient - self._probed) <= CHANGED * gradient:
                    self._read_anew(read, params, self._before)
        finally:
            self.reset()
        self.state.micro_batches = micro_batches
        return report

    def coming(self, scale: float) -> Rate:
        """The rate of the coming step, without the factor `scale`, if its gradient is the one just probed."""
        ahead, params = copy(self.state), [] if self.probe is None else self.probe.params
        if params and not math.isnan(ahead.rate):
            ahead.advance(self._direction, sharded.size_of(params), scale)
        return ahead.uncertain

    def expect_of_all(self) -> None:
        """A probe is due in all processes: one with nothing to probe reports that, so that the others do not wait for it."""
        if self._before is None and not (self.pieces or self.again or self.failure):
            self.failure = AbsentError("no training pass was seen in it; call watch() or observe() in all processes")

    def _read_anew(self, read: Read, params: Sequence[Tensor], before: RateState) -> None:
        """Replace the first reading. It is kept if weights in the probe's graph have changed since."""
        first, self.state = self.state, copy(before)
        for name in KEPT:
            setattr(self.state, name, getattr(first, name))
        try:
            self._follow(read, params)
        except NothingToReadError:
            pass
        except (RuntimeError, ValueError):
            self.state = first
            return
        self.state.probed()


def read(probe: AnyProbe, groups: list[dict[str, Any]], scaler: Scaler, rate_state: RateState) -> Reading:
    """Probe along Dg, with D and g of the coming step: g is `.grad`, or the batch's own gradient before there is any."""
    params = probe.params
    g = probe.own() if isinstance(probe, Probe) and all(p.grad is None for p in params) else gradients(params)
    rate_state.measure(sharded.length_of([(g, params)]) / max(numbers_of(params), 1) ** 0.5)
    unit = rate_state.gradient
    found = {p: (group["betas"][1], unit * float(group["eps"])) for group in groups for p in group["params"]}
    options = [found[p] for p in params]

    def scaled(i: int, x: Tensor) -> Tensor:
        return scaler.ahead(params[i], *options[i], g[i], x)

    def form(i: int, x: Tensor, y: Tensor) -> float:
        return scaler.form(params[i], *options[i], g[i], x, y)

    return probe.read(g, scaled, form) if isinstance(probe, Probe) else probe.read(g, scaled)


def numbers_of(params: Sequence[Tensor]) -> int:
    """How many real numbers these parameters hold."""
    return sum(real(p.detach()).numel() for p in params)
