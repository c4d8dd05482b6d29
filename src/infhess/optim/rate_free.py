"""Nets without a learning rate to tune: scaled gradients, schedule-free averaging, and one curvature probe in eighty steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.join import Join

from infhess._checks import count
from infhess._distributed import any_process, world_size
from infhess._precision import full_precision, full_precision_step
from infhess.curvature.batch_curvature import DoubleBackwardError
from infhess.curvature.batch_source import Hessian
from infhess.curvature.batches import Batch, sizes_of
from infhess.curvature.loss import check_loss
from infhess.curvature.random_state import RandomState
from infhess.curvature.training_pass import TrainingPass
from infhess.optim import sharded
from infhess.optim.averaging.other_changes import note_on_changes
from infhess.optim.checkpoint import Loss
from infhess.optim.effect import without_effect
from infhess.optim.joining import JoiningOptimizer
from infhess.optim.rate.difference_probe import DifferenceProbe
from infhess.optim.rate.group_options import note_on_decay, warn_of_factor
from infhess.optim.rate.live import live, moving
from infhess.optim.rate.probe import Reading
from infhess.optim.rate.prober import AnyProbe, read
from infhess.optim.reports import Rate, RateReport
from infhess.optim.scalings import checked_defaults
from infhess.optim.stepping import advance


class RateFree(JoiningOptimizer):
    """An optimizer for nets without a learning rate to tune.

    z moves by the scaled gradient Dg, x is the average of all z, and the model trains at y = (1 − β₁) z + β₁ x (Defazio et al.
    2024). The learning rate is σ √(gᵀDg/hᵀDh), with h = H D g from one Hessian-vector product in eighty steps, filtered over
    time.

    Args:
        params: as for any torch optimizer.
        weight_decay: "auto" or None: half of what noise adds to the length of a matrix is removed (diagonal scaling: nothing).
            A number means decoupled decay, as in AdamW: the share of y removed per unit of learning rate.
        scaling: D: "kronecker", Adam's scaling in rotated coordinates of each matrix (SOAP, Vyas et al. 2024), or "diagonal",
            Adam's own. "kronecker" takes fewer steps, but for a layer of out × in up to 512 · out · in operations per step and
            128 · (out + in) numbers of memory more: for small batches and wide dense layers "diagonal" may be faster.
        betas: (β₁, β₂): how close y is to the average, and the decay of squared gradients; (.9, .99) by default, (.9, .999)
            with the diagonal scaling.
        lr: factor on the learning rate found; a scheduler may change it.
        eps: Adam's ε, in units of the largest root mean square of the gradient at a probe so far; 1e-3 by default.
        maximize: maximize the loss instead.
        points: the batch size per process (of sequences: tokens), if a training pass does not tell it; 32 by default.

    Call `observe(loss, batch)` between backward and step, with each batch. Evaluate and save the model within `averaged()`, or
    after `finish()`: the averaged weights are the result. Changes to the weights by hand between steps are ignored.

    Gradients are read from `.grad` when the step is made. If they are clipped, accumulated over several batches (call `observe`
    with each of them), averaged over processes or scaled by a `GradScaler`, the learning rate is the same.

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
        scaling: str = "kronecker",
        weight_decay: float | str | None = "auto",
        betas: tuple[float, float] | None = None,
        lr: float | Tensor = 1.0,
        eps: float | None = None,
        maximize: bool = False,
        points: int | None = None,
    ) -> None:
        defaults = checked_defaults(scaling, weight_decay, betas, lr, eps) | {"maximize": maximize}
        self.points = None if points is None else count(points, "points")
        self.report: RateReport | None = None  # on the last curvature probe
        super().__init__(params, defaults)

    _started = _noted = False  # whether a step was made, and a report given, since the optimizer was made
    # Context for a second run of the closure: callbacks use it to avoid logging twice.
    around_second_run: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def rate(self) -> Rate:
        """The learning rate in use, `lr` included, with its uncertainty; NaN until curvature was seen.

        If groups differ in `lr`, it is that of the group with the largest.
        """
        return self._rate_state.uncertain.times(self._scale)

    def _read(self, probe: AnyProbe) -> Reading:
        """Read a probe along the direction of the coming step."""
        for p in probe.params:
            if p not in self.state:  # frozen until now
                self.state[p] = self._fresh(p)
        reading = read(probe, self.param_groups, self._scaler, self._rate_state)
        if probe.norms is not None:
            self._kept.norms = probe.norms
        return reading

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
        """Call this between backward and step, with each batch; now and then it probes curvature by one Hessian-vector product.

        Args:
            loss: batch ↦ scalar, the mean loss of a batch; it closes over the model.
            batch: the batch of the gradient. With gradient accumulation, call this for each micro-batch, or for the last one
                alone with `points`.
            points: data points (of sequences: tokens) that this call stands for, if the batch does not tell them.
            products: "exact", or "difference" for losses that cannot be differentiated twice.
            generator: random numbers for dropout masks.

        Returns a report if curvature was probed.

        """
        self._outside("observe")
        self._outside_watch("observe")
        check_loss(loss, products, generator)
        sharded.check_whole(self._params() if self._sharded else (), "RateFree.observe")
        prober, params = self._prober, self._params
        if not prober.expects(sizes_of, batch, points) or not self._ready:
            self._kept.add(loss, batch, params)
            return None
        make = partial(Hessian, loss, params(), [batch], products=products, points=points)
        try:
            prober.attempt(prober.add, batch, make, generator)
            # Steps usually have equally many micro-batches: probe at the last one.
            complete = prober.micro_batches == self._rate_state.micro_batches
            report = prober.begin(self._read, params()) if complete and not self._join_config.enable else None
        except BaseException:
            prober.reset()
            raise
        prober.attempt(self._kept.add, loss, batch, params)
        if report is not None:
            coming = prober.coming(self._scale).times(self._scale)
            self.report = report = self._with_notes(replace(report, rate=coming))
        return report

    @contextmanager
    def watch(self, *, points: int | None = None) -> Iterator[None]:
        """Put the forward and backward pass of training into this context, in a loop without a closure; then call `step()`.

        On the steps that probe curvature, about one in eighty, the graph of the gradient is kept and the Hessian-vector product
        is computed in `step`. On all other steps nothing happens. With gradient accumulation, watch each micro-batch.

        Args:
            points: the batch size (of sequences: tokens). By default, the leading dimension of what parameters are applied to.

        """
        self._to_train("watch")
        sharded.check_whole(self._params() if self._sharded else (), "RateFree.watch")
        with self._watch(points):
            yield

    def _training_pass(self) -> AbstractContextManager[TrainingPass | None]:
        """A context that keeps the graph if the coming step probes curvature, or to see why steps have no effect."""
        seen = self._probes or self._effect.idle
        return TrainingPass(self._params(), joined=self._join_config.enable) if seen else nullcontext()

    def _take(self, done: TrainingPass | None, points: int | None) -> None:
        if done is None or done.seen:
            self._prober.take(done if self._probes else None, points or self.points)

    @property
    def _micro_batches(self) -> int:
        return self._prober.micro_batches

    def _drop(self) -> None:
        self._prober.reset()
        self._rate_state.skip(finite=False)

    # ---- a step

    @full_precision_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; the closure runs once, before it, and its loss is returned.

        Curvature is probed on the closure's own pass. If that cannot be differentiated twice (FSDP2, some kernels), the closure
        runs a second time on the steps that probe, and curvature is a difference of gradients.
        """
        self._outside("step")
        loss = random_state = None
        if closure is not None:
            self._to_train("step")
            random_state = RandomState(self._params()) if self._probes else None
            with torch.enable_grad():
                loss = self._run(closure, graph=not (self._sharded or self._rate_state.differences))
        self._outside_watch("step")  # a closure may end it, as Lightning's does
        if closure and random_state is not None and (self._rate_state.differences or self._sharded):
            self._difference(closure, random_state)
        seen = int(self._rate_state.observed), self._prober.tokens
        with torch.no_grad():
            try:
                self._step()
            except DoubleBackwardError as error:
                if closure is None:
                    raise
                self._rate_state.differences = 1.0
                self._prober.expects(lambda: seen)
                self._difference(closure, random_state)
                self._step()
                if self.report is not None:
                    note = f"curvature is probed by differences of gradients from here on: {error}"
                    self.report = replace(self.report, notes=(note, *self.report.notes))
        return loss

    def _difference(self, closure: Callable[[], Any], random_state: RandomState | None) -> None:
        """Make the coming probe a second run of the closure."""
        assert random_state is not None
        distance = self._rate_state.distance(self.param_groups[0]["betas"][0], self._scale)
        points = int(self._rate_state.observed)

        def again() -> None:
            with self.around_second_run():
                closure()

        self._prober.again = DifferenceProbe(self._params(), again, random_state, distance, points)

    def _with_notes(self, report: RateReport) -> RateReport:
        """A report with what is noted once only."""
        changed = note_on_changes(self.param_groups, self._betas, self.state)
        decay = () if self._noted else note_on_decay(self.param_groups, self.defaults["weight_decay"])
        self._noted = True
        return replace(report, notes=(*report.notes, *self._effect.notes(), *changed, *decay))

    def _step(self) -> None:
        if not self._started:
            self._started = True
            warn_of_factor(self.param_groups, self._made_with, float(self.defaults["lr"]))
        parts = [part for part in map(live, self.param_groups) if part.params]
        if not parts:
            self._prober.reset()
            self._effect.stepped(self, self._effect.missing())
            return
        self._rate_state.check_observed()
        if world_size() > 1 and self._probes and not self._sharded:
            self._prober.expect_of_all()
        grads, params = ([x for part in parts for x in getattr(part, name)] for name in ("grads", "params"))
        lengths = sharded.lengths(grads, params)
        gradient = math.hypot(*lengths)
        unlike = 0 < gradient < math.inf and self._rate_state.follow(gradient)
        if self._join_config.enable:
            Join.notify_join_context(self)
            probes = bool(self._prober.pieces or self._prober.failure) and math.isfinite(gradient) and not unlike
            any_process(probes, self.join_device)
        if unlike:
            self._start_over()
            return
        parts = moving(parts, lengths)
        if report := self._prober.finish(gradient, self._read, self._params()):
            self.report = self._with_notes(report)
        state, scaler = self._rate_state, self._scaler
        known = not (math.isnan(state.rate) and self._ready)  # a step may only learn the scaling
        self._effect.stepped(self, without_effect(self.param_groups, gradient, known))
        if 0 < gradient < math.inf and not self._ready:
            for part in parts:
                scaler.begin(self._with_state(part))
            state.observed_at = state.steps or -1.0  # seen; the scaling learns from this gradient, without a step
            return
        if math.isnan(state.rate) or not 0 < gradient < math.inf:
            state.skip(math.isfinite(gradient))
            return
        advance([self._with_state(part) for part in parts], scaler, state, self._size, self.state)
        self._betas = [group["betas"][0] for group in self.param_groups]
        probed = state.steps_at_probe == state.steps
        if self.report is not None and probed:  # this step has set the rate of its report
            self.report = replace(self.report, rate=self.rate)

    # ---- copies

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "points": self.points, "report": self.report}
