"""What RateFree sees of training: a pass that is watched, a loss that is observed, a closure that runs again."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from infhess.curvature.flat import real
from infhess.curvature.training_pass import TrainedHessian, TrainingPass
from infhess.optim import sharded
from infhess.optim.rate.difference_probe import DifferenceProbe
from infhess.optim.rate.live import plain
from infhess.optim.rate.probe import Probe, Reading, dot
from infhess.optim.reports import Rate, RateReport
from infhess.optim.stepping import Stepping


class Probing(Stepping):
    """Curvature probes of the coming step, each along Dg with D and g as that step will have them."""

    @property
    def rate(self) -> Rate:
        """The learning rate in use, with its uncertainty; NaN as long as no curvature was seen."""
        return self._rate_state.uncertain

    # What a second run of a closure is within: callbacks keep it from logging twice.
    around_second_run: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def _ready(self) -> bool:
        """Whether D is known: a scaling may need a first gradient, and a step without a move, to learn it from."""
        return not math.isnan(self._rate_state.rate) or self._scaling.ready(self.state.values())

    @property
    def _probes(self) -> bool:
        """Whether curvature is probed at the coming step."""
        return self._rate_state.due and self._ready

    def _training_pass(self) -> AbstractContextManager[TrainingPass | None]:
        """What keeps the graph, where curvature is probed at the coming step."""
        return TrainingPass(self._params(), joined=self._join_config.enable) if self._probes else nullcontext()

    def _take(self, done: TrainingPass | None, points: int | None = None) -> None:
        """A training pass as one more micro-batch of the coming step."""
        if done is not None and not done.seen:
            return
        seen = points or self.points or (done.points if done else 0)
        self._prober.expects(lambda: seen)
        if done is not None:
            self._prober.add_graph(TrainedHessian(done, seen), done)

    def _report(self, notes: tuple[str, ...], before: float, started: float) -> RateReport:
        state, seconds = self._rate_state, time.perf_counter() - started
        notes = (*notes, *state.diagnostics(before))
        self.report = RateReport(self.rate, state.allowed, *self._prober.cost, seconds, notes)
        return self.report

    def _read(self, probe: Probe | DifferenceProbe) -> Reading:
        """A probe along Dg, with what `.grad` holds and D as the coming step will have it."""
        for p in probe.params:
            if p not in self.state:  # frozen until now
                self.state[p] = self._fresh(p)
        g = self._gradient(probe)
        numbers = sum(real(p.detach()).numel() for p in probe.params)
        self._rate_state.measure(sharded.length_of([(g, probe.params)]) / max(numbers, 1) ** 0.5)
        groups = {p: group for group in self.param_groups for p in group["params"]}

        def known(i: int) -> tuple[dict[str, Any], float, float, Tensor]:
            p = probe.params[i]
            return self._own(p), groups[p]["betas"][1], self._eps(groups[p]), self._seen_by_scaling(g[i], p)

        def scaled(i: int, x: Tensor) -> Tensor:
            p = probe.params[i]
            return self._seen_by_step(self._scaling.ahead(*known(i), self._seen_by_scaling(x, p)), p)

        def form(i: int, x: Tensor, y: Tensor) -> float:
            return dot(*self._scaling.paired(*known(i), x, y))

        reading = probe.read(g, scaled, form) if isinstance(probe, Probe) else probe.read(g, scaled)
        if probe.norms is not None:
            self._norms = probe.norms
        return reading

    def _gradient(self, probe: Probe | DifferenceProbe) -> list[Tensor]:
        """What `.grad` holds of each probed parameter; the batch's own gradient before there is any."""
        if isinstance(probe, Probe) and all(p.grad is None for p in probe.params):
            return probe.own()
        return [
            torch.zeros_like(sharded.local(self.state[p]["z"])) if p.grad is None else plain(p) for p in probe.params
        ]

    def _note(self, note: str) -> None:
        """Say something in the last report."""
        if self.report is not None:
            self.report = replace(self.report, notes=(note, *self.report.notes))

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Training's own forward and backward pass, watched; unless the closure observes by itself."""
        if self._prober.micro_batches or self._watching:
            return closure()
        with nullcontext() if self._sharded or self._rate_state.differences else self._training_pass() as done:
            loss = closure()
        if not self._prober.micro_batches:
            self._take(done)
        return loss

    def _difference(self, closure: Callable[[], Any], random_state: Tensor | None) -> None:
        """The coming probe is a second run of the closure."""
        assert random_state is not None
        distance = self._rate_state.distance(self.param_groups[0]["betas"][0])
        points = int(self._rate_state.observed)

        def again() -> None:
            with self.around_second_run():
                closure()

        self._prober.again = DifferenceProbe(self._params(), again, random_state, self._gradient, distance, points)

    def _check_observed(self) -> None:
        state, every = self._rate_state, 2 * self._rate_state.rule.every
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
