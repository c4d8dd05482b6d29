"""When curvature is probed, on which micro-batch, and along the gradient that the step finds in the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy

import torch

from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.flat import length, real
from infhess.curvature.local import DoubleBackwardError
from infhess.optim.distributed import all_reduce_mean, any_process, world_size
from infhess.optim.rate.probe import Probe, Reading
from infhess.optim.rate.rate_state import RateState
from infhess.optim.rate.settings import RATE_FREE, RateFreeRule

# A gradient whose length has changed by more than this since it was probed was clipped or added to: the probe is read anew.
CHANGED = 1e-4
# What a report may have taken off the state since, and what `observe` has counted.
KEPT = ("observed", "observed_at", "shortened", "skipped", "bounded", "waiting")
Read = Callable[[Probe], Reading]  # along the optimizer's gradients and scaling, as they stand


class Prober:
    """The learning rate's state, and the probe of the coming step while that step is not made."""

    def __init__(self, rule: RateFreeRule = RATE_FREE, state: RateState | None = None) -> None:
        self.state = state or RateState()
        self.state.rule = rule
        self.reset()

    def reset(self) -> None:
        """Nothing observed since the last step."""
        self.probe: Probe | None = None
        self.micro_batches, self._probed, self.state.observed = 0, math.nan, 0.0

    def expects(self, points_of: Callable[[], int]) -> bool:
        """Count a micro-batch; whether curvature is to be probed on it.

        Micro-batches come in equal numbers: the probe is of the last one, when the gradient is complete.
        """
        due = self.state.due
        points = points_of() if due else 0
        self.state.observed_at = self.state.steps + 1
        self.state.observed += points
        self.micro_batches += 1
        return due and self.micro_batches == self.state.micro_batches

    def begin(self, source: Hessian, batch: Batch, read: Read) -> tuple[str, ...]:
        """One probe. One that fails changes nothing, in all processes; the first has to tell something."""
        self._before = copy(self.state)
        try:
            reading, failure = self._first_reading(source, batch, read)
        except BaseException:
            self.state = self._before
            self.reset()
            raise
        self.state.probed()
        if failure is not None:
            self.probe = None
            if isinstance(failure, DoubleBackwardError) or math.isnan(self.state.log_rate):
                self.reset()
                raise failure
        elif reading is None or math.isnan(reading.log_ratio):
            failure = ValueError("there was no gradient, or no curvature along it, on this batch")
        return () if failure is None else (f"a curvature probe was skipped: {failure}",)

    def _first_reading(self, source: Hessian, batch: Batch, read: Read) -> tuple[Reading | None, ValueError | None]:
        """What a new probe reads, or why it does not: where it fails in one process, no process has it."""
        failure: Exception | None = None
        try:
            self.probe = Probe(source, batch)
        except Exception as error:
            failure = error
        if any_process(failure is not None, source.like.device):
            failure = failure or ValueError("it failed in another process that trains this model")
        if failure is not None and not isinstance(failure, ValueError):
            raise failure
        if failure is not None:
            return None, failure
        try:
            return self._follow(read), None
        except DoubleBackwardError as error:
            return None, error

    @torch.no_grad()
    def _follow(self, read: Read) -> Reading:
        """Read the probe along the gradient as it stands, and follow what it says."""
        probe, state = self.probe, self.state
        assert probe is not None
        state.count_points(all_reduce_mean([state.observed], probe.params[0].device)[0] * world_size())
        reading = read(probe)
        self._probed = reading.gradient
        state.begin(length([[real(w.detach()) for w in probe.params]]), reading.direction)
        if not math.isnan(reading.log_ratio):
            state.see(reading.log_ratio)
        return reading

    def finish(self, gradient: float, read: Read) -> None:
        """The step is made with a gradient of this length: read anew where it was clipped, unscaled or added to since."""
        changed = self.probe is not None and not abs(gradient - self._probed) <= CHANGED * gradient
        micro_batches = float(self.micro_batches or self.state.micro_batches)
        try:
            if changed and math.isfinite(gradient):
                self._read_anew(read)
        finally:
            self.reset()
        self.state.micro_batches = micro_batches

    def _read_anew(self, read: Read) -> None:
        """As if the first reading had not been; it stands where weights of the probe's graph have changed since."""
        first, self.state = self.state, copy(self._before)
        for name in KEPT:
            setattr(self.state, name, getattr(first, name))
        try:
            self._follow(read)
            self.state.probed()
        except RuntimeError:
            self.state = first
