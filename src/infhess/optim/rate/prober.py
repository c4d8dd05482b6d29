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

# A gradient whose length has changed by more than this since it was probed was clipped or added to: the probe is read anew.
CHANGED = 1e-4
Read = Callable[[Probe], Reading]  # along the optimizer's gradients and scaling, as they stand


class Prober:
    """The learning rate's state, and the probe of the coming step while that step is not made."""

    def __init__(self, state: RateState | None = None) -> None:
        self.state = state or RateState()
        self.reset()

    def reset(self) -> None:
        """Nothing observed since the last step."""
        self.probe: Probe | None = None
        self.micro_batches = 0

    def expects(self, points_of: Callable[[], int]) -> bool:
        """Count a micro-batch; whether curvature is to be probed on it.

        Micro-batches come in equal numbers: the probe is of the last one, when the gradient is complete.
        """
        self.state.observed_at = self.state.steps + 1
        self.micro_batches += 1
        if not self.state.due:
            return False
        self.state.observed += points_of()
        return self.micro_batches == self.state.micro_batches

    def begin(self, source: Hessian, batch: Batch, read: Read) -> tuple[str, ...]:
        """One probe. One that fails changes nothing, in all processes; the first has to tell something."""
        self._before, failure, reading = copy(self.state), None, None
        try:
            self.probe = Probe(source, batch)
        except ValueError as error:
            failure = error
        if any_process(failure is not None, source.like.device):
            failure = failure or ValueError("it failed in another process that trains this model")
        else:
            try:
                reading = self._follow(read)
            except DoubleBackwardError as error:
                failure = error
        self.state.probed()
        if failure is not None:
            self.probe = None
            if isinstance(failure, DoubleBackwardError) or math.isnan(self.state.log_rate):
                self.reset()
                raise failure
        elif reading is None or math.isnan(reading.log_ratio):
            failure = ValueError("there was no gradient, or no curvature along it, on this batch")
        return () if failure is None else (f"a curvature probe was skipped: {failure}",)

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
        if changed and math.isfinite(gradient):
            self._before.observed, self._before.observed_at = self.state.observed, self.state.observed_at
            self.state = self._before
            self._follow(read)
            self.state.probed()
        if self.micro_batches:
            self.state.micro_batches = float(self.micro_batches)
        self.reset()
