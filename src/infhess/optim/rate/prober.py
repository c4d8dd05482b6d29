"""When curvature is probed, on which micro-batch, and along the gradient that the step finds in the end."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from typing import Any

import torch

from infhess._distributed import all_reduce_mean, world_size
from infhess.curvature.batch_source import BatchSource
from infhess.curvature.batches import Batch
from infhess.curvature.local import DoubleBackwardError
from infhess.curvature.training_pass import GRAPHS
from infhess.optim.rate.difference_probe import DifferenceProbe
from infhess.optim.rate.probe import MicroBatch, Probe, Reading
from infhess.optim.rate.rate_state import RateState
from infhess.optim.rate.settings import RATE_FREE, RateFreeRule

# A gradient whose length has changed by more than this since it was probed was clipped or added to: the probe is read anew.
CHANGED = 1e-4
# What a report may have taken off the state since, and what `observe` has counted.
KEPT = ("observed", "observed_at", "shortened", "skipped", "bounded", "waiting")
Read = Callable[[Any], Reading]  # along the optimizer's gradients and scaling, as they stand


class NothingToReadError(ValueError):
    """No gradient, or no curvature along it."""


class Prober:
    """The learning rate's state, and the micro-batches of the coming step while that step is not made."""

    def __init__(self, rule: RateFreeRule = RATE_FREE, state: RateState | None = None) -> None:
        self.state = state or RateState()
        self.state.rule = rule
        self.cost = (0, 0)  # of the last probe: products, and data points of them
        self.reset()

    def reset(self) -> None:
        """Nothing observed since the last step."""
        self.pieces: list[MicroBatch] = []
        self.again: DifferenceProbe | None = None  # instead of these, a second run of the closure
        self.probe: Probe | DifferenceProbe | None = None
        self.micro_batches, self._probed, self.state.observed = 0, math.nan, 0.0

    def expects(self, points_of: Callable[[], int]) -> bool:
        """Count a micro-batch; whether curvature is to be probed at the coming step."""
        due = self.state.due
        points = points_of() if due else 0
        self.state.observed_at = self.state.steps + 1
        self.state.observed += points
        self.micro_batches += 1
        return due

    @property
    def complete(self) -> bool:
        """Whether as many micro-batches were seen as the step before had: they come in equal numbers."""
        return self.micro_batches == self.state.micro_batches

    def add(self, source: BatchSource, batch: Batch) -> None:
        """One more micro-batch to probe. Its graph is kept where it is the only one."""
        self.pieces.append(MicroBatch(source, batch, keep=self.state.micro_batches == 1 and not self.pieces))

    def add_graph(self, source: BatchSource, batch: Batch) -> None:
        """The graph of a training pass. Two of a step are kept, however many it has."""
        if len(self.pieces) < GRAPHS:
            self.pieces.append(MicroBatch(source, batch))

    def begin(self, read: Read) -> tuple[str, ...]:
        """One probe. One that fails changes nothing, in all processes; the first has to tell something."""
        self._before = copy(self.state)
        failure: ValueError | None = None
        try:
            self._follow(read)
        except ValueError as error:
            failure = error
        except BaseException:
            self.state = self._before
            self.reset()
            raise
        self.state.probed()
        if failure is not None and not isinstance(failure, NothingToReadError):
            self.probe, self.pieces, self.again = None, [], None
            if isinstance(failure, DoubleBackwardError) or math.isnan(self.state.log_rate):
                self.reset()
                raise failure
        return () if failure is None else (f"a curvature probe was skipped: {failure}",)

    @torch.no_grad()
    def _follow(self, read: Read) -> None:
        """Read the probe along the gradient as it stands, and follow what it says."""
        state = self.state
        probe = self.probe = self.again or Probe(self.pieces, self.micro_batches)
        reading = read(probe)
        self.cost = probe.cost
        state.count_points(all_reduce_mean([state.observed], probe.params[0].device)[0] * world_size())
        self._probed = reading.gradient
        state.begin(probe.size(), reading.direction)
        if math.isnan(reading.log_ratio):
            raise NothingToReadError("there was no gradient, or no curvature along it, on this batch")
        state.see(reading.log_ratio)

    def finish(self, gradient: float, read: Read) -> tuple[str, ...] | None:
        """The step is made with a gradient of this length: read anew where it was clipped, unscaled or added to since.

        Notes where it is probed here for the first time: all of a training pass is known only now.
        """
        notes, micro_batches = None, float(self.micro_batches or self.state.micro_batches)
        try:
            if (self.pieces or self.again) and math.isfinite(gradient):
                if self.probe is None and math.isnan(self._probed):
                    notes = self.begin(read)
                elif self.probe is not None and not abs(gradient - self._probed) <= CHANGED * gradient:
                    self._read_anew(read)
        finally:
            self.reset()
        self.state.micro_batches = micro_batches
        return notes

    def _read_anew(self, read: Read) -> None:
        """As if the first reading had not been; it stands where weights of the probe's graph have changed since."""
        first, self.state = self.state, copy(self._before)
        for name in KEPT:
            setattr(self.state, name, getattr(first, name))
        try:
            self._follow(read)
        except NothingToReadError:
            pass
        except (RuntimeError, ValueError):
            self.state = first
            return
        self.state.probed()
