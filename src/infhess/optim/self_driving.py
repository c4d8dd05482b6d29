"""An optimizer that estimates and follows curvature on its own, on the batches that training reads anyway."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from infhess._checks import count
from infhess._distributed import world_size
from infhess._precision import full_precision
from infhess.curvature.batch_source import BatchSource, Hessian
from infhess.curvature.batches import Batch
from infhess.curvature.local import DoubleBackwardError
from infhess.curvature.training_pass import GRAPHS, TrainedHessian, TrainingPass
from infhess.optim.base_optimizers import rate_is_known
from infhess.optim.controllers import nonconvex, switch
from infhess.optim.controllers.context import Context, Decision
from infhess.optim.observed import Observed, sized, together
from infhess.optim.preconditioning.scaled_step import finite
from infhess.optim.rate.probe import MicroBatch, Probe
from infhess.optim.reports import Report
from infhess.optim.sharded import check_whole
from infhess.optim.wrapper import Wrapper, size_of

# More parameters than this are a net: its curvature is followed, not inferred, and no mean of its iterates is kept.
LARGE = 100_000


class SelfDriving(Wrapper):
    """`observe`, `watch` and `step(closure)`: a controller decides on each step, and the wrapper does what it says."""

    _settings: tuple[str, ...] = (
        *("method", "step_length", "report"),
        *("_asked_rank", "_pool", "_observed", "_acted", "_was_fresh", "_unread"),
    )

    def __init__(
        self, base: torch.optim.Optimizer, rank: int | None, blocks: str, method: str, step_length: str
    ) -> None:
        self._asked_rank, self.method, self.step_length = rank, method, step_length
        self._pool: list[Batch] = []  # batches kept by observe until an estimate is made
        self._observed: list[Observed] = []  # calls of observe since the last step
        self._acted = 0  # how many of them were acted upon
        self._was_fresh = True  # whether nothing was known before that
        self._unread: tuple[str, ...] = ()  # notes of a report that was not returned to anyone
        self.report: Report | None = None  # of the last estimate or curvature probe
        super().__init__(base, rank, blocks)

    def reset(self) -> None:
        """Forget everything learnt: until the next estimate the wrapper is its base again."""
        super().reset()
        self._pool.clear()
        self._acted = 0  # what was observed for the coming step is acted upon again

    def _adopt(self, incoming: Any) -> None:
        super()._adopt(incoming)
        self._pool.clear()
        self._acted = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_observed": [], "_acted": 0}  # losses are often lambdas, which do not pickle

    @full_precision
    def observe(
        self,
        loss: Callable[[Batch], Tensor],
        batch: Batch,
        *,
        points: int | None = None,
        split: bool = True,
        products: str = "exact",
        generator: torch.Generator | None = None,
    ) -> Report | None:
        """Call it between backward and step with each batch, instead of `update`.

        It estimates, refreshes and follows the step length by itself, on the batches that training reads anyway (a few of
        them are kept until an estimate is made). Where the loss proves not to be convex it follows the learning rate alone.
        Until a learning rate is known no step is made. With gradient accumulation, call it for each micro-batch: those of
        one step are one batch. `points` is the size of the batch where it does not tell.

        Returns a report when it did something; its data_points are 0, since nothing was read beside training.
        """
        self._outside_watch("observe")
        if not self._observed:
            self._check_observable()
        points = None if points is None else count(points, "points")
        self._observed.append(Observed(loss, batch, points, split and points is None, products, generator))
        # Micro-batches come in equal numbers: the last one is acted upon.
        return self._act() if len(self._observed) == self._state.micro_batches else None

    @contextmanager
    def watch(self, *, points: int | None = None) -> Iterator[None]:
        """Around the forward and backward pass of training, in nets; then `step()`, and no `observe`.

        On steps at which curvature is probed, one in eighty, the gradient's graph is kept and the Hessian-vector product is
        taken in `step`. Else nothing happens. With gradient accumulation, watch each micro-batch; `points` is its size.
        """
        if not self._observed:
            self._check_observable()
        known = None if points is None else count(points, "points")
        with self._open_watch(), self._training_pass() as done:
            yield
        self._take(done, known)

    def _training_pass(self) -> AbstractContextManager[TrainingPass | None]:
        """What keeps the graph where curvature is probed at the coming step; of two passes of a step, however many it has."""
        kept = sum(o.batch is not None for o in self._observed)
        return TrainingPass(self._params()) if self._probes and kept < GRAPHS else nullcontext()

    @property
    def _probes(self) -> bool:
        """Whether curvature is probed at the coming step."""
        return nonconvex.due(self._state, self._state.steps + 1)

    def _run(self, closure: Callable[[], Any]) -> Any:
        """Training's own forward and backward pass, watched; unless an `update` or `observe` is in charge."""
        if self._observed or self._watching or not self._drives:
            return closure()
        check_whole(self._params() if self._probes else (), "Preconditioned.step")
        with self._training_pass() as done:
            loss = closure()
        if not self._observed:
            self._take(done)
        return loss

    def _take(self, done: TrainingPass | None, points: int | None = None) -> None:
        """A training pass as one more micro-batch of the coming step; none where no gradient was computed in it."""
        if done is None or done.seen:
            self._observed.append(Observed(None, done, points or (done.points if done else 0)))

    @property
    def _drives(self) -> bool:
        """Whether training passes drive the wrapper: nothing does so far, or they and `observe` in a net have done so."""
        state = self._state
        able = self.method == "curvature" and self.step_length == "measured" and rate_is_known(self.base)
        follows = state.nonconvex and state.rate > 0
        return bool(able and state.base_rate > 0 and (not state.active or state.step == 0 or follows))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's. A batch that was observed and never stepped with, for a gradient that is not finite, is skipped."""
        if self._observed and self._state.active and not finite([p.grad for p in self._params()], self._state):
            self._observed.clear()
            self._acted = 0
        super().zero_grad(set_to_none)

    def _check_observable(self) -> None:
        if self.method != "curvature" or self.step_length != "measured":
            raise ValueError('observe: needs method="curvature" and step_length="measured"; with others call update')
        if not rate_is_known(self.base):
            raise ValueError(
                f"observe: {type(self.base).__name__} does not move by its rate times a known scaling; wrap SGD or Adam"
            )
        if not self._state.steps:
            check_whole(self._params(), "Preconditioned")
            self._check_rates()

    def _before_step(self) -> None:
        """Where micro-batches were more or fewer than those of the step before: act upon what there is."""
        if self._observed and self._acted < len(self._observed):
            if self._acted and self._state.steps == 1 and self._was_fresh:  # of the very first, one micro-batch alone
                self.reset()
            if not self._acted and (report := self._act()):
                self.report, self._unread = report, report.notes
            self._state.micro_batches = float(len(self._observed))
        self._observed.clear()
        self._acted = 0

    def _act(self) -> Report | None:
        """Let a controller decide on the coming step, and do what it says."""
        started, state, seen = time.perf_counter(), self._state, list(self._observed)
        self._acted, self._was_fresh = len(seen), not state.active
        failure, points = sized(seen)
        if not state.nonconvex and self._is_net(seen):
            state.nonconvex = 1.0
        state.read += points
        state.steps += 1
        context = self._context(seen, points, failure)
        try:
            with torch.no_grad():
                decision = switch.decide(context)
        except BaseException as error:
            self._observed.clear()
            self._acted = 0
            if not (state.active or isinstance(error, DoubleBackwardError)):
                state.active, state.step = 1.0, 0.0  # no step is made before a learning rate is known
            raise
        self._follow(decision)
        return self._report(context, decision, time.perf_counter() - started)

    def _is_net(self, seen: list[Observed]) -> bool:
        """Whether the rule for nets is in charge.

        Of a training pass there is no loss to evaluate again. Processes that train one model agree by that rule alone.
        """
        if world_size() > 1 or any(o.loss is None for o in seen):
            return True
        return not self._state.steps and (self.blocks == "layer" or size_of(self.base) > LARGE)

    def _context(self, seen: list[Observed], points: int, failure: Exception | None) -> Context:
        batch = None if self._state.nonconvex else together(seen)

        def source() -> Hessian:
            return self._hessian(seen[-1], batch)

        def probe() -> Probe:
            kept = [o for o in seen if o.loss is not None or o.batch is not None] if failure is None else []
            sources = [self._observed_source(o, i) for i, o in enumerate(kept)]
            pieces = [MicroBatch(source, o.batch, keep=len(seen) == 1) for source, o in zip(sources, kept)]
            live = [p for p in self._params() if p.requires_grad]
            return Probe(pieces, len(seen), params=live, failure=failure)

        return Context(
            self._state, self.base, self._params(), self._learnt.means, batch, points, self.rank, self._pool, source,
            probe, self._scaling,
        )  # fmt: skip

    def _observed_source(self, o: Observed, index: int) -> BatchSource:
        """The curvature of one micro-batch."""
        return TrainedHessian(o.batch, o.size) if o.loss is None else self._hessian(o, o.batch, index)

    def _hessian(self, o: Observed, batch: Batch, index: int = 0) -> Hessian:
        assert o.loss is not None
        # Other masks for each batch and micro-batch.
        masks = o.generator or torch.Generator().manual_seed(int(self._state.steps) + index * 2**32)
        source = self._source(o.loss, [batch], o.split, o.products, masks, o.points)
        source.pooled = False  # a probe takes the mean over processes
        return source

    def _follow(self, decision: Decision) -> None:
        """Act on a decision."""
        state = self._state
        if decision.scaling is not None:
            self._install(decision.scaling)
        if not math.isnan(decision.rate):
            state.active, state.step = 1.0, decision.rate / state.factor
        state.limit, state.momentum = decision.limit, decision.momentum

    def _report(self, context: Context, decision: Decision, seconds: float) -> Report | None:
        state = self._state
        if decision.values is None:
            return None
        notes = (*self._unread, *decision.notes, *state.diagnostics(), *self._rank_note())
        self._unread = ()
        std = state.step * state.log_rate_variance**0.5 if state.log_rate == state.log_rate else math.nan
        bars = torch.full_like(decision.values, torch.nan)
        cost = context.products, 0, seconds, notes, context.product_points
        self.report = Report(decision.values, bars, state.step, *cost, std)
        return self.report

    def _rank_note(self) -> tuple[str, ...]:
        """A rank that was asked for and is not in use, said once."""
        if self._asked_rank is None or not self._state.nonconvex or self._state.rank_noted or self._state.directions:
            return ()
        self._state.rank_noted = 1.0
        return (
            f"rank = {self._asked_rank} is not used: in nets observe follows the learning rate alone; call update for "
            "directions",
        )

    # ---- curvature

    def _source(
        self,
        loss: Callable[[Batch], Tensor],
        batches: Iterable[Batch],
        split: bool,
        products: str,
        generator: torch.Generator | None,
        points: int | None = None,
    ) -> Hessian:
        """The curvature of what is minimised: of −loss where the base maximises."""
        check_whole(self._params(), "Preconditioned")
        if not callable(loss):
            raise TypeError(f"loss: expected a callable from a batch to a scalar, got {type(loss).__name__}")
        signs = {bool(group.get("maximize", False)) for group in self.param_groups}
        if len(signs) > 1:
            raise ValueError("expected all groups to minimise, or all to maximise")
        self._learnt.check_sizes(self._params())
        minimised = (lambda batch: -loss(batch)) if signs.pop() else loss
        return Hessian(
            minimised, self._params(), batches, products=products, split=split, points=points, generator=generator
        )

    def _check_rates(self) -> None:
        if not self._state.base_rate > 0:
            raise ValueError(
                f"lr: expected a rate above 0 when the base is made, of whatever size, got {self._state.base_rate:g}; "
                "a measured step is applied relative to it"
            )
